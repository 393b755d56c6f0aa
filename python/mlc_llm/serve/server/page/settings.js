// The settings dialog, and the small dialog that asks one question.
import { byId, make } from "./dom.js";
import { fallbacks, NUMBERS } from "./numbers.js";
import { readKey, readSettings, writeKey, writeSettings } from "./store.js";

export class Settings {
  /** changed(system, numbers): the user has changed them. */
  constructor(changed) {
    this.dialog = byId("settings");
    this.changed = changed;
    this.inputs = new Map(NUMBERS.map((one) => [one.name, this.field(one)]));
    byId("close-settings").addEventListener("click", () => this.dialog.close());
    byId("settings-form").addEventListener("submit", (event) => { event.preventDefault(); this.dialog.close(); });
    byId("system").addEventListener("input", () => this.tell());
    byId("key").addEventListener("input", () => writeKey(byId("key").value.trim()));
    byId("reset-numbers").addEventListener("click", () => this.reset());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.theme();
  }

  /** Show the dialog for a conversation. */
  open(conversation, entry, focus = "system") {
    byId("system").value = conversation.system;
    byId("key").value = readKey();
    const own = { ...fallbacks(entry), ...((entry && entry.default_parameters) || {}) };
    for (const [name, input] of this.inputs) {
      input.value = conversation.numbers[name] ?? "";
      input.placeholder = own[name] ?? input.dataset.open;
    }
    this.check();
    this.dialog.showModal();
    byId(focus).focus();
  }

  field({ name, label, least, most, whole, hint, open = "off" }) {
    const id = `set-${name}`;
    const input = make("input", { id, type: "number", inputmode: "decimal", step: whole ? "1" : "any", min: least, max: most, title: hint, "data-open": open });
    const wrong = make("p", { class: "wrong", id: `${id}-wrong`, role: "alert" });
    input.setAttribute("aria-describedby", wrong.id);
    input.addEventListener("input", () => { this.check(); this.tell(); });
    byId("numbers").append(make("div", {}, make("label", { for: id }, label), input, wrong));
    return input;
  }

  check() {
    for (const input of this.inputs.values()) {
      const words = input.validity.valid ? "" : `${wanted(input)}. Not used.`;
      input.setAttribute("aria-invalid", String(!input.validity.valid));
      input.nextElementSibling.textContent = words;
    }
  }

  tell() {
    const valid = [...this.inputs].filter(([, input]) => input.validity.valid && input.value !== "");
    const numbers = Object.fromEntries(valid.map(([name, input]) => [name, Number(input.value)]));
    const system = byId("system").value.trim() ? byId("system").value : "";
    writeSettings({ ...readSettings(), system, numbers });
    this.changed(system, numbers);
  }

  reset() {
    for (const input of this.inputs.values()) input.value = "";
    this.check();
    this.tell();
  }

  theme() {
    const select = byId("theme");
    const show = () => { document.documentElement.dataset.theme = select.value; };
    select.value = readSettings().theme || "";
    show();
    select.addEventListener("change", () => { show(); writeSettings({ ...readSettings(), theme: select.value }); });
  }
}

function wanted(input) {
  const kind = input.step === "1" ? "a whole number" : "a number";
  const least = input.min && ` from ${input.min}`;
  const most = input.max && ` to ${input.max}`;
  return `Should be ${kind}${least}${most}`;
}

/** Ask one question. Resolves with null (no), true, or with `value` given, the text. */
export function ask(title, words, yes, value) {
  const dialog = byId("ask");
  const input = byId("ask-input");
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = words;
  byId("ask-yes").textContent = yes;
  input.hidden = value === undefined;
  input.value = value || "";
  input.setAttribute("aria-label", title);
  return new Promise((resolve) => {
    let result = null;
    byId("ask-form").onsubmit = (event) => {
      event.preventDefault();
      result = value === undefined ? true : input.value.trim();
      dialog.close();
    };
    byId("ask-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(result);
    dialog.showModal();
    (value === undefined ? byId("ask-no") : input).focus();
  });
}
