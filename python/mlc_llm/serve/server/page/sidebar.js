// The list of conversations: open, rename, export, delete; all of them to a file and back.
import { byId, icon, make, openMenu } from "./dom.js";
import { ask } from "./settings.js";
import { allConversations, exported, imported, readConversation, removeConversation, writeConversation } from "./store.js";

const NARROW = matchMedia("(max-width: 760px)");

export class Sidebar {
  /** act: open(id), fresh(), renamed(id, title), removed(id), say(words). */
  constructor(act) {
    this.act = act;
    byId("new").addEventListener("click", () => { act.fresh(); this.closeIfNarrow(); });
    byId("open-side").addEventListener("click", () => this.toggle(true));
    byId("close-side").addEventListener("click", () => this.toggle(false));
    byId("veil").addEventListener("click", () => this.toggle(false));
    byId("export-all").addEventListener("click", () => this.save(allConversations(), "conversations"));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.load(event.target));
    byId("delete-all").addEventListener("click", () => this.deleteAll());
    this.show(!NARROW.matches);
  }

  /** Fill the list. here: the id of the open one. */
  fill(here) {
    const entries = allConversations().map((one) => this.entry(one, one.id === here));
    byId("list").replaceChildren(...entries);
  }

  entry(one, here) {
    const open = () => { this.act.open(one.id); this.closeIfNarrow(); };
    const name = make("button", { class: "name", type: "button", onclick: open, title: one.title, "aria-current": here ? "page" : null }, one.title || "New chat");
    const more = make("button", { class: "icon more", type: "button", "aria-label": `More about ${one.title || "New chat"}`, "aria-haspopup": "menu" }, icon("more"));
    more.addEventListener("click", () => openMenu(more, [
      ["Rename", () => this.rename(one)],
      ["Export", () => this.save([readConversation(one.id) || one], one.title || "conversation")],
      ["Delete", () => this.remove(one), "danger"],
    ]));
    return make("li", { class: here ? "here" : null }, name, more);
  }

  show(open) {
    byId("layout").classList.toggle("closed", !open);
    byId("open-side").setAttribute("aria-expanded", String(open));
    byId("veil").hidden = !(open && NARROW.matches);
  }

  toggle(open) {
    this.show(open);
    byId(open ? "new" : "open-side").focus();
  }

  closeIfNarrow() {
    if (NARROW.matches) this.show(false);
  }

  async rename(one) {
    const title = await ask("Rename the conversation", "", "Rename", one.title);
    if (title) this.act.renamed(one.id, title);
  }

  async remove(one) {
    const sure = await ask("Delete the conversation?", `“${one.title || "New chat"}” cannot be brought back.`, "Delete");
    if (!sure) return;
    removeConversation(one.id);
    this.act.removed(one.id);
  }

  async deleteAll() {
    const all = allConversations();
    if (!all.length) return this.act.say("There is no conversation to delete.");
    const sure = await ask("Delete all conversations?", `All ${all.length} of them are removed from this browser.`, "Delete all");
    if (!sure) return;
    for (const one of all) removeConversation(one.id);
    this.act.removed(null);
  }

  save(conversations, name) {
    if (!conversations.length) return this.act.say("There is no conversation to export.");
    const address = URL.createObjectURL(new Blob([exported(conversations)], { type: "application/json" }));
    const file = `${name.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation"}.json`;
    make("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  async load(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    byId("settings").close();
    try {
      const found = imported(await file.text());
      const kept = found.filter(writeConversation);
      this.act.imported(kept);
      const lost = found.length - kept.length;
      this.act.say(lost ? `${lost} of ${found.length} conversations found no room in this browser.` : `${found.length} imported.`);
    } catch (error) {
      this.act.say(`Nothing was imported. ${error.message}`);
    }
  }
}
