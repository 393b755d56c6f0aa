// Markdown as DOM nodes. What a model writes is only ever set as text: no HTML of it runs, nothing
// is loaded because of it, and links lead to http, https and mailto alone.
import { inline } from "./inline.js";
import { copyText, make } from "./dom.js";

const MAX_DEPTH = 10;
// No part may give back what the next one takes too: the time would grow with the square of the length.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;

/** Show `source` in `target`. Blocks that have not changed keep their nodes, so that a growing text
 * costs little. */
export function render(target, source) {
  const blocks = split(source.split("\n"));
  const keys = blocks.map((block) => block.kind + block.lines.join("\n"));
  const old = target.keys || [];
  let same = 0;
  while (same < keys.length && keys[same] === old[same]) same++;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(node(block, 0));
  target.keys = keys;
}

/** The blocks of some lines: each has a kind and its lines. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) { at++; continue; }
    const kind = kindOf(lines, at);
    const end = ENDS[kind](lines, at);
    blocks.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function kindOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  if (line.includes("|") && aligns(lines[at + 1]) !== null) return "table";
  return "text";
}

const ENDS = {
  code(lines, at) {
    const fence = FENCE.exec(lines[at])[1];
    for (let i = at + 1; i < lines.length; i++) if (closes(lines[i], fence)) return i + 1;
    return lines.length;
  },
  heading: (_, at) => at + 1,
  rule: (_, at) => at + 1,
  quote: (lines, at) => lastOf(lines, at, (line) => QUOTE.test(line)),
  table: (lines, at) => lastOf(lines, at, (line) => line.includes("|")),
  text: (lines, at) => lastOf(lines, at, (line, i) => line.trim() !== "" && kindOf(lines, i) === "text"),
  list(lines, at) {
    const first = ITEM.exec(lines[at]);
    let i = at + 1;
    for (; i < lines.length; i++) {
      const line = lines[i];
      if (!line.trim()) continue;
      const indent = line.length - line.trimStart().length;
      const item = ITEM.exec(line);
      if (item && indent <= first[1].length + 1) {
        if (ordered(item) !== ordered(first) || RULE.test(line)) break;
      } else if (indent < first[1].length + 2 && (!lines[i - 1].trim() || kindOf(lines, i) !== "text")) break;
    }
    while (!lines[i - 1].trim()) i--;
    return i;
  },
};

function lastOf(lines, at, belongs) {
  let i = at + 1;
  while (i < lines.length && belongs(lines[i], i)) i++;
  return i;
}

const ordered = (item) => /\d/.test(item[2]);
const closes = (line, fence) => {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
};

function node(block, depth) {
  if (depth > MAX_DEPTH) return make("p", {}, block.lines.join("\n"));
  return NODES[block.kind](block.lines, depth);
}

const NODES = {
  text: (lines) => inline(make("p"), lines.map((line) => line.trim()).join("\n")),
  rule: () => make("hr"),
  heading(lines) {
    const [, marks, text] = HEADING.exec(lines[0]);
    return inline(make(`h${Math.min(marks.length + 2, 6)}`), (text || "").trim());
  },
  quote(lines, depth) {
    const inner = lines.map((line) => line.replace(QUOTE, ""));
    return make("blockquote", {}, ...split(inner).map((block) => node(block, depth + 1)));
  },
  code(lines) {
    const [, fence, language] = FENCE.exec(lines[0]);
    const closed = lines.length > 1 && closes(lines[lines.length - 1], fence);
    return codeBlock(lines.slice(1, closed ? -1 : undefined).join("\n"), language.trim());
  },
  table(lines) {
    const sides = aligns(lines[1]);
    const cell = (tag) => (text, i) => inline(make(tag, { class: sides[i] }), text.trim());
    const row = (line, tag) => make("tr", {}, ...cells(line).slice(0, sides.length).map(cell(tag)));
    const body = make("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
    const table = make("table", {}, make("thead", {}, row(lines[0], "th")), body);
    return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
  },
  list(lines, depth) {
    const first = ITEM.exec(lines[0]);
    const list = make(ordered(first) ? "ol" : "ul");
    if (ordered(first)) list.setAttribute("start", parseInt(first[2], 10));
    for (const item of items(lines, first[1].length)) list.append(itemNode(item, depth));
    return list;
  },
};

/** The lines of each item, without the marker and the indent. */
function items(lines, base) {
  const found = [];
  let width = 0;
  for (const line of lines) {
    const marker = ITEM.exec(line);
    if (marker && marker[1].length <= base + 1) {
      width = marker[1].length + marker[2].length + 1;
      found.push([line.slice(marker[0].length)]);
    } else {
      const indent = line.length - line.trimStart().length;
      found[found.length - 1].push(line.slice(Math.min(indent, width)));
    }
  }
  return found;
}

function itemNode(lines, depth) {
  const entry = make("li");
  const blocks = split(lines);
  const tight = !lines.slice(0, -1).some((line) => !line.trim()) || blocks.length < 2;
  for (const block of blocks) {
    if (tight && block.kind === "text") inline(entry, block.lines.map((line) => line.trim()).join("\n"));
    else entry.append(node(block, depth + 1));
  }
  return entry;
}

/** The sides of the columns, if the line is the second one of a table. */
function aligns(line) {
  if (!line || !line.includes("-")) return null;
  const parts = cells(line).map((cell) => cell.trim());
  if (!parts.every((part) => /^:?-+:?$/.test(part))) return null;
  return parts.map((part) => (part.endsWith(":") ? (part.startsWith(":") ? "center" : "right") : null));
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "");
  const parts = text.split("|");
  if (text.endsWith("|")) parts.pop();
  return parts;
}

function codeBlock(text, language) {
  const button = make("button", { type: "button", onclick: () => copy(button, text) }, "Copy");
  const head = make("div", { class: "code-head" }, make("span", {}, language || "text"), button);
  return make("div", { class: "code" }, head, make("pre", { tabindex: "0" }, make("code", {}, text)));
}

async function copy(button, text) {
  try {
    await copyText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}
