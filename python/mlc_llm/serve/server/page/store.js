// What the browser keeps: conversations and settings in localStorage, the key in sessionStorage.
// A browser may allow neither: then to touch them is an error, and the page works without.
import { known } from "./numbers.js";

const PREFIX = "mlc_llm.chat.";
const SETTINGS = "mlc_llm.settings";
const KEY = "mlc_llm.key";
const FORMAT = "mlc_llm.conversations";
const PICTURE = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+$/;
const MAX_IMPORT = 64 << 20;
const MAX_TITLE = 48;

export function newConversation(settings = {}) {
  const now = Date.now();
  return { id: crypto.getRandomValues(new Uint32Array(4)).join(""), title: "", named: false, created: now, updated: now, model: null, system: settings.system || "", numbers: known(settings.numbers), messages: [] };
}

/** All conversations that can be read, the newest first. */
export function allConversations() {
  const ids = names().filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length));
  const found = ids.map(readConversation).filter((one) => one !== null);
  return found.sort((a, b) => b.updated - a.updated);
}

function names() {
  return canKeep() ? Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i)) : [];
}

/** Whether the browser lets the page keep anything. */
export function canKeep() {
  try {
    return Boolean(localStorage);
  } catch {
    return false;
  }
}

export function readConversation(id) {
  try {
    return checked(JSON.parse(localStorage.getItem(PREFIX + id)));
  } catch {
    return null;
  }
}

/** A conversation as it is kept now: another tab may have changed it. Messages that have not changed
 * are the same objects, so that their elements stay. */
export function renewed(conversation) {
  const kept = readConversation(conversation.id);
  if (!kept || kept.updated < conversation.updated) return conversation;
  const old = conversation.messages.map((one) => JSON.stringify(message(one)));
  const messages = kept.messages.map((one, i) => (JSON.stringify(one) === old[i] ? conversation.messages[i] : one));
  return { ...kept, messages };
}

/** False if the browser has no room for it. */
export function writeConversation(conversation) {
  return write(PREFIX + conversation.id, conversation);
}

export function removeConversation(id) {
  if (canKeep()) localStorage.removeItem(PREFIX + id);
}

/** What the name of a storage event is about. Null: everything was deleted. */
export const isConversation = (name) => name === null || name.startsWith(PREFIX);
export const isOf = (name, conversation) => name === null || name === PREFIX + conversation.id;

/** Whether the tab that has kept this text of a conversation writes an answer in it. */
export const isWritten = (text) => Boolean(text) && JSON.parse(text).messages.some((one) => one.writing);

export function readSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) || {};
  } catch {
    return {};
  }
}

export const writeSettings = (settings) => write(SETTINGS, settings);

let keyOfPage = ""; // for browsers that keep nothing

export function readKey() {
  try {
    return sessionStorage.getItem(KEY) || "";
  } catch {
    return keyOfPage;
  }
}

export function writeKey(key) {
  keyOfPage = key;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch { /* it lasts until the page is closed */ }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** The text of a file with these conversations. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1) + "\n";
}

/** The conversations of a file: an exported one, or the messages that `/save` of `mlc_llm chat`
 * writes. They get new ids. Throws an Error with words for people. */
export function imported(text) {
  if (text.length > MAX_IMPORT) throw new Error("The file is longer than 64 MB.");
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const messages = Array.isArray(value) ? value : value && value.messages;
  if (Array.isArray(messages) && !(value && value.conversations)) return [ofMessages(messages)];
  if (!value || value.format !== FORMAT || !Array.isArray(value.conversations)) {
    throw new Error("The file has no conversations of this page.");
  }
  return value.conversations.map((one) => ({ ...checked(one), id: newConversation().id }));
}

function ofMessages(messages) {
  const [first, ...others] = messages;
  const isSystem = Boolean(first) && first.role === "system";
  const system = isSystem ? textOf(first.content) : "";
  const rest = isSystem ? others : messages;
  const made = { ...newConversation({ system }), messages: rest.map(message) };
  return { ...made, title: titleOf(made) };
}

/** The text of a system message, which may come in parts. Throws if it is none. */
function textOf(content) {
  const parts = Array.isArray(content) ? content.map((part) => part && part.text) : [content];
  if (parts.every((part) => typeof part === "string")) return parts.join("\n");
  throw new Error("The system message should be a text.");
}

/** A clean copy of a conversation. Throws if it is none. */
function checked(value) {
  if (!value || typeof value.id !== "string" || !Array.isArray(value.messages)) {
    throw new Error("The file has something that is no conversation.");
  }
  const clean = {
    ...newConversation(),
    id: value.id,
    named: value.named === true,
    system: text(value.system),
    model: text(value.model) || null,
    numbers: known(value.numbers),
    messages: value.messages.map(message),
  };
  for (const name of ["created", "updated"]) if (Number.isFinite(value[name])) clean[name] = value[name];
  return { ...clean, title: text(value.title) || titleOf(clean) };
}

const text = (value) => (typeof value === "string" ? value : "");

function message(value) {
  const { role, content } = value || {};
  if ((role !== "user" && role !== "assistant") || typeof content !== "string") {
    throw new Error("A message should have a role (user or assistant) and a text.");
  }
  const clean = { role, content };
  if (typeof value.thought === "string" && value.thought) clean.thought = value.thought;
  if (Array.isArray(value.pictures)) clean.pictures = value.pictures.filter((one) => PICTURE.test(one));
  for (const name of ["error", "kind", "reason"]) if (text(value[name])) clean[name] = value[name];
  if (value.stopped || value.writing) clean.stopped = true; // the page was left while it was written
  if (value.stats && typeof value.stats === "object") clean.stats = stats(value.stats);
  return clean;
}

function stats(value) {
  const names = ["prompt", "answer", "cached", "first", "rate", "thinking"];
  return Object.fromEntries(names.filter((name) => Number.isFinite(value[name])).map((name) => [name, value[name]]));
}

/** The beginning of the first question. */
export function titleOf(conversation) {
  const first = conversation.messages.find((one) => one.role === "user");
  const words = first ? first.content.trim().replace(/\s+/g, " ") : "";
  const letters = lettersOf(words.slice(0, MAX_TITLE * 20));
  if (letters.length <= MAX_TITLE) return letters.join("");
  return letters.slice(0, MAX_TITLE).join("").replace(/\s\S*$/, "") + "…";
}

/** What a reader sees as one letter may be several characters: most emoji are. */
function lettersOf(words) {
  if (!Intl.Segmenter) return [...words];
  return Array.from(new Intl.Segmenter().segment(words), (one) => one.segment);
}
