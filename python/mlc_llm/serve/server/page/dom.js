// Makes elements. Text becomes text nodes only: this page never parses HTML at run time.

const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  up: "M12 19V6M6 11l6-6 6 6",
  down: "M12 5v13M6 13l6 6 6-6",
  stop: "M8 8h8v8H8z",
  picture: "M4 6h16v12H4zM4 15l4.5-4 4 3.5 3-2.5L20 16M9 9.5h.01",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  edit: "M5 19l1-4L16.5 4.5l3 3L9 18zM14.5 6.5l3 3",
  again: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  done: "M5 13l4 4L19 7",
};

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes ("on..." is a listener, `class` a class) and children. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function icon(name) {
  const image = document.createElementNS(SVG, "svg");
  image.setAttribute("class", "icon-image");
  image.setAttribute("viewBox", "0 0 24 24");
  image.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  image.append(path);
  return image;
}

export function iconButton(name, label, onclick) {
  return make("button", { class: "icon", type: "button", "aria-label": label, title: label, onclick }, icon(name));
}

/** Give the elements of the page that ask for an icon theirs. */
export function placeIcons() {
  for (const node of document.querySelectorAll("[data-icon]")) {
    node.append(icon(node.dataset.icon));
    const label = node.getAttribute("aria-label");
    if (label && node.tagName === "BUTTON") node.title = label;
  }
}

/** Copy a text. Where the browser has no clipboard (plain HTTP from another machine), the old way. */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = make("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser does not allow it");
}

/** A menu below a button. entries: [label, what to do, class]. */
export function openMenu(button, entries) {
  const menu = make("div", { class: "menu", role: "menu" });
  const close = () => {
    menu.remove();
    document.removeEventListener("pointerdown", outside, true);
  };
  const outside = (event) => menu.contains(event.target) || close();
  for (const [label, act, kind] of entries) {
    const chosen = () => { close(); button.focus(); act(); };
    menu.append(make("button", { type: "button", role: "menuitem", class: kind, onclick: chosen }, label));
  }
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.stopPropagation();
      close();
      button.focus();
    }
  });
  (button.closest("dialog") || document.body).append(menu);
  const place = button.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(place.left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${Math.min(place.bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
  document.addEventListener("pointerdown", outside, true);
  menu.firstChild.focus();
}
