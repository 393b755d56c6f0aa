// Pictures that wait to be sent. They are hidden where the model sees none.
import { byId, icon, make } from "./dom.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MAX_BYTES = 10 << 20;
const MAX_PICTURES = 8;

/** Whether an entry of /v1/models says that the model reads images. */
export function sees(entry) {
  const says = entry || {};
  const lists = [says.input_modalities, says.architecture && says.architecture.input_modalities, says.capabilities];
  const words = lists.filter(Array.isArray).flat();
  return words.includes("image") || words.includes("vision") || Boolean(says.capabilities && says.capabilities.vision === true);
}

export class Pictures {
  /** changed(): there are more or fewer. say(words): something was refused. */
  constructor(changed, say) {
    this.changed = changed;
    this.say = say;
    this.waiting = [];
    this.allowed = false;
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => { this.add([...event.target.files]); event.target.value = ""; });
    byId("question").addEventListener("paste", (event) => this.from(event, event.clipboardData));
    byId("composer").addEventListener("dragover", (event) => this.allowed && event.preventDefault());
    byId("composer").addEventListener("drop", (event) => this.from(event, event.dataTransfer));
  }

  allow(allowed) {
    this.allowed = allowed;
    byId("attach").hidden = !allowed;
    if (!allowed) this.take();
  }

  /** The pictures as data URLs; none wait any more. */
  take() {
    const taken = this.waiting;
    this.waiting = [];
    this.show();
    return taken;
  }

  from(event, data) {
    const files = [...data.files].filter((file) => file.type.startsWith("image/"));
    if (!this.allowed || !files.length) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    for (const file of files) {
      if (!KINDS.includes(file.type)) this.say(`${file.name} is no PNG, JPEG, WebP or GIF picture.`);
      else if (file.size > MAX_BYTES) this.say(`${file.name} is larger than 10 MB.`);
      else if (this.waiting.length >= MAX_PICTURES) this.say(`At most ${MAX_PICTURES} pictures go with a message.`);
      else this.waiting.push(await asDataURL(file));
    }
    this.show();
  }

  show() {
    const list = byId("pictures");
    list.hidden = !this.waiting.length;
    list.replaceChildren(...this.waiting.map((src, i) => {
      const drop = make("button", { type: "button", "aria-label": `Remove picture ${i + 1}` }, icon("close"));
      drop.addEventListener("click", () => { this.waiting.splice(i, 1); this.show(); });
      return make("li", {}, make("img", { src, alt: `Picture ${i + 1}` }), drop);
    }));
    this.changed();
  }
}

function asDataURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
