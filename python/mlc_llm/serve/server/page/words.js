// Words for people, beside the messages.
import { byId, make } from "./dom.js";

/** A line above the messages; an empty one removes it. */
export function say(words) {
  const banner = byId("banner");
  banner.hidden = !words;
  banner.replaceChildren();
  if (words) banner.append(make("div", { class: "trouble" }, make("p", {}, words)));
}

/** For screen readers alone. */
export function tell(words) {
  byId("live").textContent = words;
}
