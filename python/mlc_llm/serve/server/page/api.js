// Calls of the server. Errors are `ChatError`s whose message is for people.
import { readKey } from "./store.js";

/** kind: "lost" (no connection), "key" (one is needed), "server" (it said why). */
export class ChatError extends Error {
  constructor(message, kind = "server") {
    super(message);
    this.kind = kind;
  }
}

const LOST = "The server cannot be reached. Check that it runs and that you are connected.";
const CUT = "The connection was lost before the answer was complete.";

/** The entries of /v1/models. */
export async function models() {
  const response = await call("v1/models", {});
  return (await response.json()).data;
}

/** The pieces of a streamed answer: {text, thought, reason, usage}. */
export async function* answer(body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const options = { method: "POST", body: JSON.stringify(request), signal };
  const response = await call("v1/chat/completions", options);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    yield piece(data);
  }
  throw new ChatError(CUT, "lost");
}

function piece(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ChatError("The server sent something that this page cannot read.");
  }
  if (chunk.error) throw new ChatError(chunk.error.message || "The request failed.");
  const choice = (chunk.choices || [])[0] || {};
  const delta = choice.delta || {};
  return {
    text: delta.content || "",
    thought: delta.reasoning_content || delta.reasoning || "",
    reason: choice.finish_reason || null,
    usage: chunk.usage || null,
  };
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (!line && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : new ChatError(CUT, "lost");
  }
}

async function call(path, options) {
  const headers = options.body ? { "content-type": "application/json" } : {};
  const key = readKey();
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ChatError(LOST, "lost");
  }
  if (!response.ok) throw await failure(response, key);
  return response;
}

async function failure(response, key) {
  if (response.status === 401) {
    const words = key ? "The server does not know this key." : "This server needs a key.";
    return new ChatError(`${words} Give it in the settings.`, "key");
  }
  let words = "";
  try {
    words = (await response.json()).error.message;
  } catch { /* not one of our answers: a proxy's */ }
  words = words || `The server answered with status ${response.status}.`;
  const seconds = Number(response.headers.get("retry-after"));
  return new ChatError(seconds ? `${words} Try again in ${seconds} s.` : words);
}
