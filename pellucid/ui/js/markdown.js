// Markdown to nodes. Safe by its making: text only ever becomes text nodes, links only http(s) and mailto, no HTML at all.
//
// Every piece of text is given with its place in the source, so that a word on the page still knows which token it was.

// source: the Markdown. emit(parent, text, places): append `text`, whose i-th character stands at source[places[i]].
export function renderMarkdown(parent, source, emit) {
  const lines = [];
  for (let start = 0; start <= source.length; ) {
    let end = source.indexOf("\n", start);
    if (end < 0) end = source.length;
    lines.push({ start, end });
    start = end + 1;
  }
  blocks(parent, source, lines, emit, 0);
}

const textOf = (source, line) => source.slice(line.start, line.end);
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +/;
const DIVIDER = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
const DEEPEST = 8;

function blocks(parent, source, lines, emit, depth) {
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) inlineLines(append(parent, "p"), source, paragraph, emit);
    paragraph = [];
  };
  for (let i = 0; i < lines.length; ) {
    const text = textOf(source, lines[i]);
    let match;
    if (!text.trim()) {
      flush();
      i += 1;
    } else if ((match = /^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)/.exec(text))) {
      flush();
      i = fence(parent, source, lines, i, match, emit);
    } else if ((match = /^ {0,3}(#{1,6}) +/.exec(text))) {
      flush();
      inlineLines(append(parent, `h${Math.min(6, match[1].length + 2)}`), source, [{ start: lines[i].start + match[0].length, end: lines[i].end }], emit);
      i += 1;
    } else if (RULE.test(text)) {
      flush();
      append(parent, "hr");
      i += 1;
    } else if (/^ {0,3}> ?/.test(text) && depth < DEEPEST) {
      flush();
      const inner = [];
      while (i < lines.length && (match = /^ {0,3}> ?/.exec(textOf(source, lines[i])))) {
        inner.push({ start: lines[i].start + match[0].length, end: lines[i].end });
        i += 1;
      }
      blocks(append(parent, "blockquote"), source, inner, emit, depth + 1);
    } else if (ITEM.test(text) && depth < DEEPEST) {
      flush();
      i = list(parent, source, lines, i, emit, depth);
    } else if (text.includes("|") && i + 1 < lines.length && DIVIDER.test(textOf(source, lines[i + 1])) && textOf(source, lines[i + 1]).includes("-")) {
      flush();
      i = table(parent, source, lines, i, emit);
    } else {
      paragraph.push(lines[i]);
      i += 1;
    }
  }
  flush();
}

function fence(parent, source, lines, i, match, emit) {
  const code = append(append(parent, "pre"), "code");
  if (match[2]) code.dataset.language = match[2];
  const closing = new RegExp(`^ {0,3}${match[1][0]}{${match[1].length},} *$`);
  const first = i + 1;
  for (i = first; i < lines.length && !closing.test(textOf(source, lines[i])); i++);
  if (i > first) emitRange(code, source, lines[first].start, lines[i - 1].end, emit);
  return i + 1;
}

function list(parent, source, lines, i, emit, depth) {
  const first = ITEM.exec(textOf(source, lines[i]));
  const ordered = /\d/.test(first[2]);
  const node = append(parent, ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2], 10) !== 1) node.start = parseInt(first[2], 10);
  while (i < lines.length) {
    const match = ITEM.exec(textOf(source, lines[i]));
    if (!match || match[1].length !== first[1].length || /\d/.test(match[2]) !== ordered) break;
    const inner = [{ start: lines[i].start + match[0].length, end: lines[i].end }];
    i += 1;
    while (i < lines.length) {
      const text = textOf(source, lines[i]);
      const indent = text.length - text.trimStart().length;
      const belongs = !text.trim() ? i + 1 < lines.length && /^ {2,}\S/.test(textOf(source, lines[i + 1])) : indent > match[1].length + 1;
      if (!belongs) break;
      inner.push({ start: Math.min(lines[i].end, lines[i].start + Math.min(indent, match[0].length)), end: lines[i].end });
      i += 1;
    }
    const item = append(node, "li");
    if (inner.length === 1) inlineLines(item, source, inner, emit);
    else blocks(item, source, inner, emit, depth + 1);
    while (i + 1 < lines.length && !textOf(source, lines[i]).trim() && ITEM.test(textOf(source, lines[i + 1]))) i += 1;
  }
  return i;
}

function table(parent, source, lines, i, emit) {
  const node = append(append(parent, "div", "scroll"), "table");
  const row = (line, tag) => {
    const tr = append(node, "tr");
    let start = line.start;
    let end = line.end;
    while (source[start] === " " || source[start] === "|") start += 1;
    while (end > start && (source[end - 1] === " " || source[end - 1] === "|")) end -= 1;
    for (let at = start; at <= end; ) {
      let stop = source.indexOf("|", at);
      if (stop < 0 || stop > end) stop = end;
      inlineLines(append(tr, tag), source, [{ start: at, end: stop }], emit);
      at = stop + 1;
    }
  };
  row(lines[i], "th");
  for (i += 2; i < lines.length && textOf(source, lines[i]).includes("|"); i++) row(lines[i], "td");
  return i;
}

function inlineLines(parent, source, lines, emit) {
  let text = "";
  const places = [];
  lines.forEach((line, index) => {
    for (let at = line.start; at < line.end; at++) {
      text += source[at];
      places.push(at);
    }
    if (index < lines.length - 1) {
      text += "\n";
      places.push(line.end);
    }
  });
  inline(parent, text, places, 0, text.length, emit, 0);
}

const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;

function inline(parent, text, places, from, to, emit, depth) {
  let plain = from;
  const flush = (end) => {
    if (end > plain) emit(parent, text.slice(plain, end), places.slice(plain, end));
  };
  const inside = (node, start, end, next) => {
    inline(node, text, places, start, end, emit, depth + 1);
    plain = next;
    return next;
  };
  for (let i = from; i < to; ) {
    const character = text[i];
    if (character === "\\" && i + 1 < to && /[!-/:-@[-`{-~]/.test(text[i + 1])) {
      flush(i);
      plain = i + 1;
      i += 2;
      continue;
    }
    if (character === "`") {
      const ticks = /^`+/.exec(text.slice(i, to))[0];
      const end = text.indexOf(ticks, i + ticks.length);
      if (end > 0 && end < to) {
        flush(i);
        emit(append(parent, "code"), text.slice(i + ticks.length, end), places.slice(i + ticks.length, end));
        plain = i = end + ticks.length;
        continue;
      }
      i += ticks.length;
      continue;
    }
    if (character === "[" && depth < DEEPEST) {
      const match = /^\[([^\]\n]+)\]\(\s*([^\s)]+)[^)\n]*\)/.exec(text.slice(i, to));
      if (match && SAFE_LINK.test(match[2])) {
        flush(i);
        i = inside(link(parent, match[2]), i + 1, i + 1 + match[1].length, i + match[0].length);
        continue;
      }
    }
    if (character === "h" && (i === from || /\W/.test(text[i - 1]))) {
      const match = /^https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?]/.exec(text.slice(i, to));
      if (match && parent.tagName !== "A") {
        flush(i);
        emit(link(parent, match[0]), match[0], places.slice(i, i + match[0].length));
        plain = i = i + match[0].length;
        continue;
      }
    }
    const pair = depth < DEEPEST && PAIRS.find(([mark]) => text.startsWith(mark, i));
    if (pair && i + pair[0].length < to && /\S/.test(text[i + pair[0].length]) && !(character === "_" && /\w/.test(text[i - 1] ?? " "))) {
      const end = closing(text, pair[0], i + pair[0].length, to);
      if (end > 0) {
        flush(i);
        i = inside(append(parent, pair[1]), i + pair[0].length, end, end + pair[0].length);
        continue;
      }
      i += pair[0].length;
      continue;
    }
    i += 1;
  }
  flush(to);
}

function closing(text, mark, from, to) {
  for (let end = text.indexOf(mark, from); end > 0 && end + mark.length <= to; end = text.indexOf(mark, end + mark.length)) {
    const doubled = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    const inWord = mark[0] === "_" && /\w/.test(text[end + mark.length] ?? " ");
    if (end > from && /\S/.test(text[end - 1]) && !doubled && !inWord) return end;
  }
  return -1;
}

function link(parent, address) {
  const node = append(parent, "a");
  Object.assign(node, { href: address, rel: "noopener noreferrer nofollow", target: "_blank" });
  return node;
}

function emitRange(parent, source, start, end, emit) {
  emit(parent, source.slice(start, end), Array.from({ length: end - start }, (_, index) => start + index));
}

function append(parent, tag, className = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  parent.append(node);
  return node;
}
