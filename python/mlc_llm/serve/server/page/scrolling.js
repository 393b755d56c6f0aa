// The place in the messages: whether the end is seen, and the button that leads there.
import { byId } from "./dom.js";

const NEAR_END = 60;
const scroller = byId("scroller");

export const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;

export function toEnd() {
  scroller.scrollTop = scroller.scrollHeight;
  showEndButton();
}

export function showEndButton() {
  byId("to-end").hidden = isAtEnd();
}

export function listenToScrolling() {
  byId("to-end").addEventListener("click", toEnd);
  scroller.addEventListener("scroll", showEndButton, { passive: true });
}
