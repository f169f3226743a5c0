// Markdown to DOM nodes. Nothing is ever parsed as HTML: text is made by `leaf` and elements by name.
// Every character keeps its place in the source, so that `leaf(from, to)` may mark where it came from.

const INLINE = [
  [/\\([\\`*_{}[\]()#+\-.!~|>])/y, null],
  [/(`+)([^`](?:[^]{0,2000}?[^`])?)\1(?!`)/y, "code"],
  [/\*\*(?=\S)([^]{1,2000}?\S|\S)\*\*/y, "strong"],
  [/(?<!\w)__(?=\S)([^]{1,2000}?\S|\S)__(?!\w)/y, "strong"],
  [/~~(?=\S)([^]{1,2000}?)~~/y, "s"],
  [/\*(?=[^\s*])([^*]{1,2000}?)\*/y, "em"],
  [/(?<!\w)_(?=[^\s_])([^_]{1,2000}?)_(?!\w)/y, "em"],
  [/\[([^\]\n]{1,500})\]\((https?:\/\/[^\s)]{1,2000})\)/y, "a"],
];
const FENCE = /^ {0,3}(?:(`{3,})[^`]*|(~{3,}).*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DEEPEST = 50; // quotes and lists in each other; what is deeper stays text
const DIVIDER = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

function markdown(source, leaf) {
  // A line is {text, at}: `at` is where it begins in the source.
  const line = (text, at) => ({ text, at });
  const cut = (from, count) => line(from.text.slice(count), from.at + count);

  // Joined lines: `places[i]` is where character i is in the source.
  function joined(lines) {
    let text = "";
    const places = [];
    for (const [number, { text: own, at }] of lines.entries()) {
      if (number) { text += "\n"; places.push(places.length ? places[places.length - 1] + 1 : at); }
      text += own;
      for (let i = 0; i < own.length; i++) places.push(at + i);
    }
    return { text, places };
  }

  function leaves(into, { places }, from, to) {
    for (let start = from; start < to;) {
      let end = start + 1;
      while (end < to && places[end] === places[end - 1] + 1) end++;
      into.append(...leaf(places[start], places[end - 1] + 1));
      start = end;
    }
  }

  function inline(into, whole, from = 0, to = whole.text.length) {
    let plain = from;
    for (let at = from; at < to;) {
      const found = "\\`*_~[".includes(whole.text[at]) && span(whole, at, to);
      if (!found) { at++; continue; }
      leaves(into, whole, plain, at);
      const { name, match } = found;
      const inner = name === "code" ? match[2] : match[1];
      const start = at + ({ code: match[1].length, strong: 2, s: 2 }[name] ?? 1);
      if (name === null) leaves(into, whole, start, start + 1);
      else {
        const made = document.createElement(name);
        if (name === "a") Object.assign(made, { href: match[2], rel: "noopener noreferrer", target: "_blank" });
        if (name === "code") leaves(made, whole, start, start + inner.length);
        else inline(made, whole, start, start + inner.length);
        into.append(made);
      }
      at = plain = at + match[0].length;
    }
    leaves(into, whole, plain, to);
    return into;
  }

  function span(whole, at, to) {
    for (const [pattern, name] of INLINE) {
      pattern.lastIndex = at;
      const match = pattern.exec(whole.text);
      if (match && at + match[0].length <= to) return { name, match };
    }
    return null;
  }

  const element = (name, lines) => inline(document.createElement(name), joined(lines));
  const begins = (text) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(text));

  function blocks(into, lines, depth) {
    if (depth > DEEPEST) {
      into.append(element("p", lines));
      return into;
    }
    for (let i = 0; i < lines.length;) {
      const { text } = lines[i];
      if (!text.trim()) i++;
      else if (FENCE.test(text)) i = fence(into, lines, i);
      else if (HEADING.test(text)) {
        const [all, marks] = HEADING.exec(text);
        into.append(element(`h${Math.min(6, marks.length + 1)}`, [cut(lines[i++], all.length)]));
      } else if (RULE.test(text)) { into.append(document.createElement("hr")); i++; }
      else if (QUOTE.test(text)) i = quote(into, lines, i, depth);
      else if (ITEM.test(text)) i = list(into, lines, i, depth);
      else if (text.includes("|") && i + 1 < lines.length && lines[i + 1].text.includes("-") && DIVIDER.test(lines[i + 1].text)) i = table(into, lines, i);
      else {
        const first = i++;
        while (i < lines.length && lines[i].text.trim() && !begins(lines[i].text)) i++;
        into.append(element("p", lines.slice(first, i)));
      }
    }
    return into;
  }

  function fence(into, lines, i) {
    const [, ticks, waves] = FENCE.exec(lines[i].text), mark = ticks ?? waves;
    const first = ++i;
    while (i < lines.length && !(lines[i].text.trim().startsWith(mark) && /^[`~]+$/.test(lines[i].text.trim()))) i++;
    const code = document.createElement("code");
    const whole = joined(lines.slice(first, i));
    leaves(code, whole, 0, whole.text.length);
    const pre = document.createElement("pre");
    pre.append(code);
    into.append(pre);
    return i + 1;
  }

  function quote(into, lines, i, depth) {
    const inside = [];
    for (; i < lines.length && QUOTE.test(lines[i].text); i++) inside.push(cut(lines[i], QUOTE.exec(lines[i].text)[0].length));
    into.append(blocks(document.createElement("blockquote"), inside, depth + 1));
    return i;
  }

  function list(into, lines, i, depth) {
    const ordered = /\d/.test(ITEM.exec(lines[i].text)[2]);
    const made = document.createElement(ordered ? "ol" : "ul");
    if (ordered) made.start = parseInt(ITEM.exec(lines[i].text)[2], 10);
    for (let match; i < lines.length && (match = ITEM.exec(lines[i].text)) && /\d/.test(match[2]) === ordered;) {
      const width = match[0].length;
      const inside = [cut(lines[i++], width)];
      for (; i < lines.length; i++) {
        const { text } = lines[i];
        const indent = /^ */.exec(text)[0].length;
        if (!text.trim()) {
          const next = lines[i + 1]?.text ?? "";
          if (!/^ {2,}\S/.test(next)) break;
          inside.push(lines[i]);
        } else if (indent >= Math.min(width, 2)) inside.push(cut(lines[i], Math.min(indent, width)));
        else if (!begins(text) && inside.at(-1).text.trim()) inside.push(lines[i]);
        else break;
      }
      const item = blocks(document.createElement("li"), inside, depth + 1);
      if (item.firstElementChild?.tagName === "P") item.firstElementChild.replaceWith(...item.firstElementChild.childNodes);
      made.append(item);
      while (i < lines.length && !lines[i].text.trim() && ITEM.test(lines[i + 1]?.text ?? "")) i++;
    }
    into.append(made);
    return i;
  }

  function cells(row) {
    const found = [];
    let start = /^ *\|?/.exec(row.text)[0].length;
    const end = row.text.replace(/\| *$/, "").length;
    while (start <= end) {
      let bar = row.text.indexOf("|", start);
      if (bar < 0 || bar > end) bar = end;
      const lead = /^ */.exec(row.text.slice(start, bar))[0].length;
      found.push(line(row.text.slice(start, bar).trim(), row.at + start + lead));
      start = bar + 1;
    }
    return found;
  }

  function table(into, lines, i) {
    const made = document.createElement("table");
    const row = (name, from) => {
      const own = document.createElement("tr");
      own.append(...cells(from).map((cell) => element(name, [cell])));
      return own;
    };
    made.append(row("th", lines[i]));
    for (i += 2; i < lines.length && lines[i].text.includes("|"); i++) made.append(row("td", lines[i]));
    into.append(made);
    return i;
  }

  const lines = [];
  for (let at = 0; at <= source.length;) {
    const end = source.indexOf("\n", at) < 0 ? source.length : source.indexOf("\n", at);
    lines.push(line(source.slice(at, end), at));
    at = end + 1;
  }
  return blocks(document.createDocumentFragment(), lines, 0);
}
