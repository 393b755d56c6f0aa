// The inside of a paragraph: emphasis, code, links. Each failed search is remembered, so that the
// time grows with the length of the text, whatever the text is.
import { make } from "./dom.js";

const MAX_DEPTH = 6;
const MAX_LINK = 2000;
const WORD = /[\p{L}\p{N}]/u;
const SAFE = new Set(["http:", "https:", "mailto:"]);

/** Add the text to `parent`, which is returned. */
export function inline(parent, text, depth = 0) {
  const none = new Set();
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const rule = RULES[text[at]];
    const found = rule && depth <= MAX_DEPTH ? rule(text, at, none, depth) : null;
    if (found === null || found === undefined) {
      plain += text[at++];
      continue;
    }
    if (plain) parent.append(plain);
    plain = "";
    parent.append(found.node);
    at = found.end;
  }
  if (plain) parent.append(plain);
  return parent;
}

const RULES = {
  "\\": (text, at) => (/[!-/:-@[-`{-~]/.test(text[at + 1] || "") ? { node: text[at + 1], end: at + 2 } : null),
  "\n": (_, at) => ({ node: make("br"), end: at + 1 }),
  "`": code,
  "*": emphasis,
  "_": emphasis,
  "~": (text, at, none, depth) => (text[at + 1] === "~" ? between(text, at, "~~", "del", none, depth) : null),
  "[": (text, at, none, depth) => link(text, at, at, none, depth),
  "!": (text, at, none, depth) => (text[at + 1] === "[" ? link(text, at, at + 1, none, depth) : null),
  "<": angle,
  "h": address,
};

function code(text, at, none) {
  let size = 1;
  while (text[at + size] === "`") size++;
  const marks = "`".repeat(size);
  if (none.has(marks)) return { node: marks, end: at + size };
  let end = text.indexOf(marks, at + size);
  while (end !== -1 && (text[end + size] === "`" || text[end - 1] === "`")) {
    while (text[end] === "`") end++;
    end = text.indexOf(marks, end);
  }
  if (end === -1) {
    none.add(marks);
    return { node: marks, end: at + size };
  }
  let inside = text.slice(at + size, end);
  if (/^ .*[^ ].* $/s.test(inside)) inside = inside.slice(1, -1);
  return { node: make("code", {}, inside), end: end + size };
}

function emphasis(text, at, none, depth) {
  const mark = text[at];
  if (mark === "_" && WORD.test(text[at - 1] || "")) return null;
  if (text[at + 1] === mark) return between(text, at, mark + mark, "strong", none, depth);
  return between(text, at, mark, "em", none, depth);
}

/** What stands between two equal marks, as an element. */
function between(text, at, mark, tag, none, depth) {
  const size = mark.length;
  if (none.has(mark) || !/\S/.test(text[at + size] || "")) return null;
  let end = text.indexOf(mark, at + size + 1);
  while (end !== -1 && !ends(text, end, mark)) {
    end = text.indexOf(mark, end + (size === 1 && text[end + 1] === mark ? 2 : 1));
  }
  if (end === -1) {
    none.add(mark);
    return null;
  }
  if (size === 2 && text[end + 2] === mark[0]) end++; // ***both***
  return { node: inline(make(tag), text.slice(at + size, end), depth + 1), end: end + size };
}

function ends(text, end, mark) {
  if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") return false;
  if (mark.length === 1 && text[end + 1] === mark) return false;
  return mark[0] !== "_" || !WORD.test(text[end + mark.length] || "");
}

function link(text, at, open, none, depth) {
  if (none.has("](")) return null;
  if (text.indexOf("](", open) === -1) {
    none.add("](");
    return null;
  }
  const close = matching(text, open, "[", "]");
  if (close === -1 || text[close + 1] !== "(") return null;
  const end = matching(text, close + 1, "(", ")");
  if (end === -1) return null;
  const label = text.slice(open + 1, close);
  const target = text.slice(close + 2, end).trim().replace(/\s+["'(][^\n]*$/, "").replace(/^<|>$/g, "");
  const href = safe(target);
  if (href === null) return { node: `${label} (${target})`, end: end + 1 };
  const words = at === open ? label : `picture: ${label || target}`;
  return { node: inline(anchor(href), words, depth + 1), end: end + 1 };
}

function matching(text, at, open, close) {
  let level = 0;
  for (let i = at; i < Math.min(text.length, at + MAX_LINK); i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === open) level++;
    else if (text[i] === close && --level === 0) return i;
  }
  return -1;
}

function angle(text, at) {
  const line = /^<br *\/?>/i.exec(text.slice(at, at + 8));
  if (line) return { node: make("br"), end: at + line[0].length };
  const found = /^<(https?:\/\/[^\s<>]+)>/.exec(text.slice(at, at + MAX_LINK));
  const href = found && safe(found[1]);
  return href ? { node: anchor(href, found[1]), end: at + found[0].length } : null;
}

function address(text, at) {
  if (!text.startsWith("http://", at) && !text.startsWith("https://", at)) return null;
  if (WORD.test(text[at - 1] || "")) return null;
  const found = /^[^\s<>"'`*]+/.exec(text.slice(at, at + MAX_LINK))[0];
  let shown = found.replace(/[.,;:!?]+$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
  const href = safe(shown);
  return href ? { node: anchor(href, shown), end: at + shown.length } : null;
}

/** The address, if a link may lead there. */
function safe(target) {
  try {
    return SAFE.has(new URL(target).protocol) ? target : null;
  } catch {
    return null;
  }
}

const anchor = (href, ...children) =>
  make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
