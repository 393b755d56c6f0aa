// The messages of a conversation as elements.
import { copyText, icon, iconButton, make } from "./dom.js";
import { render } from "./markdown.js";

/** Shows a list of messages. act: what the buttons of a message do: edit, again, save. */
export class MessageList {
  constructor(target, act) {
    this.target = target;
    this.act = act;
    this.views = new Map();
  }

  /** Show these messages. Those that have not changed keep their elements. writing: the message
   * that the model writes now. */
  show(messages, writing) {
    const old = this.views;
    this.views = new Map();
    messages.forEach((message, i) => {
      const last = i === messages.length - 1;
      const key = JSON.stringify([message, message === writing, last]);
      const kept = old.get(message);
      const view = kept && kept.key === key ? kept : { key, ...this.make(message, messages[i + 1], writing, last) };
      this.views.set(message, view);
    });
    this.place([...this.views.values()].map((view) => view.node));
  }

  /** Nodes that stay are not moved: what is moved loses the focus. */
  place(nodes) {
    const staying = new Set(nodes);
    for (const node of [...this.target.childNodes]) if (!staying.has(node)) node.remove();
    let next = this.target.firstChild;
    for (const node of nodes) {
      if (node === next) next = next.nextSibling;
      else this.target.insertBefore(node, next);
    }
  }

  /** Bring the text of a message that grows up to date. */
  grow(message) {
    const view = this.views.get(message);
    if (!view || !view.body) return;
    if (message.thought) {
      view.thinking.hidden = false;
      view.thought.textContent = message.thought;
      view.summary.textContent = message.content ? thoughtWords(message) : "Thinking…";
    }
    view.waiting.hidden = Boolean(message.content || message.thought);
    render(view.body, message.content);
  }

  make(message, next, writing, last) {
    return message.role === "user" ? this.question(message, next) : this.answer(message, message === writing, last);
  }

  question(message, next) {
    const failed = next && next.error && !next.content;
    const node = make("article", { class: failed ? "message user unanswered" : "message user", "aria-label": "You" });
    if (message.pictures && message.pictures.length) {
      const images = message.pictures.map((src) => make("img", { src, alt: "A picture that you sent" }));
      node.append(make("div", { class: "shown-pictures" }, ...images));
    }
    if (message.content) node.append(make("div", { class: "text" }, message.content));
    const edit = iconButton("edit", "Edit this message", () => this.edit(node, message));
    node.append(make("div", { class: "tools" }, copyButton(() => message.content), edit));
    return { node };
  }

  answer(message, isWriting, last) {
    const node = make("article", { class: "message assistant", "aria-label": "The model", "aria-busy": String(isWriting) });
    const summary = make("summary", {}, thoughtWords(message));
    const thought = make("div", { class: "thought" }, message.thought || "");
    const thinking = make("details", { class: "thinking", hidden: !message.thought }, summary, thought);
    const waiting = make("div", { class: "waiting", hidden: !isWriting, "aria-hidden": "true" }, make("i"), make("i"), make("i"));
    const body = make("div", { class: "answer" });
    node.append(thinking, waiting, body);
    const view = { node, thinking, summary, thought, waiting, body };
    waiting.hidden = !isWriting || Boolean(message.content || message.thought);
    render(body, message.content);
    if (!isWriting) node.append(...this.below(message, last));
    return view;
  }

  below(message, last) {
    const parts = [];
    if (message.stopped) parts.push(make("p", { class: "note" }, "Stopped before its end."));
    if (message.reason === "length") {
      parts.push(make("p", { class: "note" }, "Cut: the longest answer is reached, or the context is full."));
    }
    if (message.error) parts.push(this.trouble(message, last));
    const tools = make("div", { class: "tools" }, message.content ? copyButton(() => message.content) : null);
    if (last && !message.error) tools.append(iconButton("again", "Write this answer anew", () => this.act.again()));
    if (message.stats) tools.append(make("span", { class: "stats" }, statsWords(message.stats)));
    if (tools.childNodes.length) parts.push(tools);
    return parts;
  }

  trouble(message, last) {
    const box = make("div", { class: "trouble", role: "alert" }, make("p", {}, message.error));
    if (last) {
      const again = make("button", { class: "quiet", type: "button", onclick: () => this.act.again() }, "Try again");
      if (message.kind === "key") {
        box.append(make("button", { class: "quiet", type: "button", onclick: () => this.act.key() }, "Give the key"));
      }
      box.append(again);
    }
    return box;
  }

  edit(node, message) {
    const area = make("textarea", { "aria-label": "The message" });
    area.value = message.content;
    const cancel = () => { editor.replaceWith(...before); before[before.length - 1].querySelector("button").focus(); };
    const send = () => area.value.trim() && this.act.edit(message, area.value.trim());
    const words = make("span", { class: "fine" }, "What follows this message is replaced.");
    const no = make("button", { class: "quiet", type: "button", onclick: cancel }, "Cancel");
    const yes = make("button", { type: "button", onclick: send }, "Send");
    const editor = make("div", { class: "editor" }, area, make("div", { class: "buttons" }, words, no, yes));
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); cancel(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === area) {
        event.preventDefault();
        send();
      }
    });
    const before = [...node.childNodes];
    node.replaceChildren(editor);
    area.focus();
  }
}

function copyButton(text) {
  const button = iconButton("copy", "Copy", async () => {
    try {
      await copyText(text());
      button.replaceChildren(icon("done"));
    } catch {
      button.title = "The browser does not allow it";
    }
    setTimeout(() => button.replaceChildren(icon("copy")), 1600);
  });
  return button;
}

function thoughtWords(message) {
  const seconds = message.stats && message.stats.thinking;
  return seconds ? `Thought for ${seconds.toFixed(1)} s` : "Thoughts";
}

/** Counts are the server's; times are measured here, in the browser. */
function statsWords(stats) {
  const parts = [];
  if (stats.answer != null) parts.push(`${stats.answer.toLocaleString("en")} tokens`);
  if (stats.rate) parts.push(`${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tokens/s`);
  if (stats.first != null) parts.push(`first after ${stats.first.toFixed(2)} s`);
  if (stats.prompt != null) {
    const cached = stats.cached ? `, ${stats.cached.toLocaleString("en")} from the cache` : "";
    parts.push(`prompt ${stats.prompt.toLocaleString("en")}${cached}`);
  }
  return parts.join(" · ");
}
