// The page: one open conversation, and what its buttons do.
import { models } from "./api.js";
import { byId, make, placeIcons } from "./dom.js";
import { MessageList } from "./messages.js";
import { Pictures, sees } from "./pictures.js";
import { isAtEnd, listenToScrolling, showEndButton, toEnd } from "./scrolling.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { canKeep, isConversation, isOf, isWritten, newConversation, readConversation, readSettings, renewed, titleOf, writeConversation, writeSettings } from "./store.js";
import { say, tell } from "./words.js";
import { Writer } from "./writer.js";

const SAVE_MS = 2000;
const EXAMPLES = ["Explain in three sentences how a compiler works.", "Write a short poem about the sea in winter.", "What is the difference between a list and a tuple in Python?"];
const FULL = "This browser has no room for the conversation. Delete or export others; until then it is lost when the page is closed.";
const BLOCKED = "This browser does not let the page keep anything: the conversation is lost when the page is closed.";
const APART = "Another tab goes on with this conversation. This answer is in a copy of it.";
const DELETED = "This conversation was deleted in another tab.";

let conversation = newConversation(readSettings());
let entries = [];
let painting = false;
let saved = 0;

const question = byId("question");
const list = new MessageList(byId("messages"), {
  again: () => anew(),
  edit: (message, text) => edited(message, text),
  key: () => openSettings("key"),
});
const writer = new Writer({ grew, ended });
const pictures = new Pictures(() => showComposer(), say);
const settings = new Settings((system, numbers) => { Object.assign(conversation, { system, numbers }); keep(); });
const sidebar = new Sidebar({
  open: (id) => open(readConversation(id)),
  fresh: () => open(null),
  say,
  imported(found) {
    if (found.length) open(readConversation(found[0].id));
  },
  renamed(id, title) {
    const here = [conversation, writer.conversation].find((one) => one && one.id === id);
    const one = here || readConversation(id);
    if (!one) return say(DELETED);
    Object.assign(one, { title, named: true });
    keepThis(one);
    show();
  },
  removed(id) {
    if (writer.conversation && (id === null || id === writer.conversation.id)) writer.stop();
    if (id === null || id === conversation.id) open(null);
    else sidebar.fill(conversation.id);
  },
});

function open(found) {
  conversation = found && writer.conversation && found.id === writer.conversation.id ? writer.conversation : found || newConversation(readSettings());
  chooseModel();
  show();
  toEnd();
  question.focus();
}

function show() {
  document.title = `${conversation.title || "New chat"} – MLC LLM`;
  byId("title").textContent = conversation.title || "New chat";
  byId("welcome").hidden = conversation.messages.length > 0;
  list.show(conversation.messages, writer.message);
  sidebar.fill(conversation.id);
  showComposer();
}

function showComposer() {
  const writing = Boolean(writer.message);
  byId("send").hidden = writing;
  byId("stop").hidden = !writing;
  byId("send").disabled = !question.value.trim() && !pictures.waiting.length;
  byId("usage").textContent = writing && writer.conversation !== conversation ? "An answer is written in another conversation." : contextWords();
}

function contextWords() {
  const last = [...conversation.messages].reverse().find((one) => one.stats && one.stats.prompt != null);
  const entry = entryOf();
  if (!last || !entry || !entry.context_length) return "";
  const used = last.stats.prompt + (last.stats.answer || 0);
  return `context: ${used.toLocaleString("en")} of ${entry.context_length.toLocaleString("en")} tokens`;
}

// Sending and answers

function send() {
  const content = question.value.trim();
  if (writer.message || (!content && !pictures.waiting.length)) return;
  reread();
  const taken = pictures.take();
  conversation.messages.push({ role: "user", content, ...(taken.length ? { pictures: taken } : {}) });
  question.value = "";
  fit();
  write();
}

function edited(message, text) {
  if (writer.message) return say("Wait for the answer, or stop it.");
  reread();
  const at = conversation.messages.indexOf(message);
  if (at < 0) return show(); // another tab has replaced it
  conversation.messages.splice(at);
  conversation.messages.push({ ...message, content: text });
  write();
}

/** Write the last answer anew. */
function anew() {
  if (writer.message) return;
  reread();
  const at = conversation.messages.length - 1;
  conversation.messages.splice(conversation.messages[at].role === "assistant" ? at : at + 1);
  write();
}

function write() {
  if (!conversation.named) conversation.title = titleOf(conversation);
  Object.assign(conversation, { model: byId("model").value || null, updated: Date.now() });
  const done = writer.write(conversation, entryOf());
  keep();
  show();
  toEnd();
  tell("The model is writing.");
  return done;
}

function grew() {
  if (Date.now() - saved > SAVE_MS) keepAgain(writer.conversation);
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    const follow = isAtEnd();
    if (writer.message) list.grow(writer.message);
    if (follow) toEnd();
    showEndButton();
  });
}

function ended(which, message) {
  which.updated = Date.now();
  keepAgain(which);
  reread();
  const follow = isAtEnd();
  show();
  if (follow) toEnd();
  const entry = entryOf();
  if (message.kind === "lost" || (entry && entry.context_length == null)) loadModels(); // it is open now
  tell(message.error ? "" : message.stopped ? "The answer is stopped." : `The model answered: ${message.content}`);
}

// Keeping

function keep() {
  if (conversation.messages.length) keepThis(conversation);
}

function keepThis(one) {
  saved = Date.now();
  if (writeConversation(one)) {
    if (byId("banner").textContent === FULL) say("");
  } else {
    one.updated = Date.now(); // newer than what is kept, which must not replace it
    say(canKeep() ? FULL : BLOCKED);
  }
}

/** Keep a conversation, unless it was deleted while its answer was written. */
function keepAgain(one) {
  saved = Date.now();
  if (readConversation(one.id)) keepThis(one);
}

/** Take over what other tabs have added, unless this tab is writing the conversation. */
function reread() {
  if (writer.conversation !== conversation) conversation = renewed(conversation);
}

/** Another tab has changed, added or deleted a conversation. kept: its text by now. */
function changedElsewhere(name, kept) {
  const isGone = (one) => isOf(name, one) && !readConversation(one.id);
  if (writer.conversation && isGone(writer.conversation)) writer.stop();
  else if (writer.conversation && isOf(name, writer.conversation)) shared(writer.conversation, kept);
  if (conversation.messages.length && isGone(conversation)) {
    open(null);
    return say(DELETED);
  }
  if (!isOf(name, conversation)) return sidebar.fill(conversation.id);
  reread();
  show();
}

/** This tab writes the conversation, and would replace what another tab has made of it. */
function shared(one, kept) {
  if (isWritten(kept)) { // there as well: from now on it is two
    one.id = newConversation().id;
    keepThis(one);
    return say(APART);
  }
  const { title, named, system, numbers } = readConversation(one.id);
  Object.assign(one, { system, numbers }, named ? { title, named } : {});
}

// Models

async function loadModels() {
  try {
    entries = await models();
    say("");
  } catch (error) {
    return trouble(error);
  }
  const names = entries.map((entry) => make("option", { value: entry.id, title: entry.id }, entry.id));
  byId("model").replaceChildren(...names);
  chooseModel();
  show();
}

function chooseModel() {
  const known = entries.map((entry) => entry.id);
  const wanted = [conversation.model, readSettings().model].find((name) => known.includes(name));
  if (known.length) byId("model").value = wanted || known[0];
  pictures.allow(sees(entryOf()));
}

const entryOf = () => entries.find((entry) => entry.id === byId("model").value);

function trouble(error) {
  say(error.message);
  const box = byId("banner").firstChild;
  const again = make("button", { class: "quiet", type: "button", onclick: loadModels }, "Try again");
  if (error.kind === "key") box.append(make("button", { class: "quiet", type: "button", onclick: () => openSettings("key") }, "Give the key"));
  box.append(again);
}

function openSettings(focus) {
  settings.open(conversation, entryOf(), focus);
}

/** Let the message field grow where the style cannot. */
function fit() {
  if (CSS.supports("field-sizing", "content")) return;
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function listen() {
  const finger = matchMedia("(pointer: coarse)");
  byId("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("stop").addEventListener("click", () => { writer.stop(); question.focus(); });
  byId("open-settings").addEventListener("click", () => openSettings("system"));
  byId("settings").addEventListener("close", () => { if (!entries.length) loadModels(); });
  byId("model").addEventListener("change", () => {
    conversation.model = byId("model").value;
    writeSettings({ ...readSettings(), model: conversation.model });
    pictures.allow(sees(entryOf()));
    keep();
    showComposer();
  });
  question.addEventListener("input", () => { fit(); showComposer(); });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || finger.matches) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) writer.stop();
  });
  listenToScrolling();
  addEventListener("beforeunload", () => writer.leave());
  addEventListener("pagehide", () => {
    if (writer.conversation) keepAgain(writer.conversation); // whoever reads it, finds it stopped
    writer.stop();
  });
  addEventListener("storage", (event) => isConversation(event.key) && changedElsewhere(event.key, event.newValue));
}

placeIcons();
for (const text of EXAMPLES) {
  byId("examples").append(make("button", { type: "button", onclick: () => { question.value = text; showComposer(); question.focus(); } }, text));
}
listen();
show();
loadModels();
question.focus();
