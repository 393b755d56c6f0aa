// Lets the model write one answer: sends the conversation, and puts what comes into a message.
import { answer } from "./api.js";
import { numbersToSend } from "./numbers.js";

const LEAVING_MS = 3000;

export class Writer {
  /** on: grew(), ended(message). */
  constructor(on) {
    this.on = on;
    this.message = null;
    this.conversation = null;
  }

  /** Write the next message of a conversation. entry: the model, of /v1/models. */
  async write(conversation, entry) {
    const message = { role: "assistant", content: "", writing: true };
    const body = { model: entry ? entry.id : undefined, messages: toSend(conversation), ...numbersToSend(conversation.numbers, entry) };
    conversation.messages.push(message);
    this.conversation = conversation;
    this.message = message;
    this.control = new AbortController();
    const clock = new Clock();
    try {
      for await (const piece of answer(body, this.control.signal)) {
        clock.note(piece);
        if (piece.thought) message.thought = (message.thought || "") + piece.thought;
        message.content += piece.text;
        message.reason = piece.reason || message.reason;
        if (piece.text || piece.thought) this.on.grew();
      }
    } catch (error) {
      if (error.name === "AbortError" || (this.leaving && error.kind === "lost")) message.stopped = true;
      else Object.assign(message, { error: error.message || String(error), kind: error.kind || "server" });
    }
    delete message.writing;
    message.stats = clock.stats();
    this.message = this.conversation = null;
    this.on.ended(conversation, message);
  }

  stop() {
    if (this.message) this.control.abort();
  }

  /** The page is being left: the browser cuts the connection before it says so. */
  leave() {
    this.leaving = true;
    setTimeout(() => { this.leaving = false; }, LEAVING_MS);
  }
}

/** The messages for the server. A question without an answer is left out, unless it is the last:
 * many chat templates want questions and answers in turns. */
function toSend({ system, messages }) {
  const sent = system ? [{ role: "system", content: system }] : [];
  messages.forEach((message, i) => {
    const next = messages[i + 1];
    if (message.role === "assistant" ? message.content : !next || next.content) sent.push(asSent(message));
  });
  return sent;
}

function asSent({ role, content, pictures }) {
  if (!pictures || !pictures.length) return { role, content };
  const images = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...images, ...(content ? [{ type: "text", text: content }] : [])] };
}

/** Times of the browser and counts of the server. */
class Clock {
  constructor() {
    this.started = performance.now();
  }

  note({ text, thought, usage }) {
    const now = performance.now();
    if (text || thought) {
      this.first ??= now;
      this.last = now;
      if (text) this.spoke ??= now;
      else this.thought ??= now;
    }
    if (usage) this.usage = usage;
  }

  stats() {
    const stats = {};
    if (this.first) stats.first = (this.first - this.started) / 1000;
    if (this.thought && this.spoke) stats.thinking = (this.spoke - this.thought) / 1000;
    if (this.usage) {
      stats.prompt = this.usage.prompt_tokens;
      stats.answer = this.usage.completion_tokens;
      stats.cached = (this.usage.prompt_tokens_details || {}).cached_tokens;
      if (stats.answer > 1 && this.last > this.first) stats.rate = (stats.answer - 1) * 1000 / (this.last - this.first);
    }
    return stats;
  }
}
