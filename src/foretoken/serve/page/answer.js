// How a run is shown: its text with each token marked, the strip of blocks, the numbers.

const STRIP = 50; // pixels of the highest bar

function make(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

// Where tokens end in the text: {end, block, place}; place: among the accepted, from 1; 0 is a bonus.
function tokensOf(run) {
  const found = [];
  let end = 0;
  run.blocks.forEach((block, number) => block.texts.forEach(({ length }, place) => {
    if (length) found.push({ end: end += length, block: number, place: place < block.accepted ? place + 1 : 0, drafted: block.draft.length > 0 });
  }));
  return found;
}

function text(run) {
  const tokens = tokensOf(run);
  let next = 0;
  function leaf(from, to) {
    while (next && tokens[next - 1].end > from) next--;
    while (next < tokens.length && tokens[next].end <= from) next++;
    const parts = [];
    for (let at = from; at < to; next++) {
      const token = tokens[next];
      const end = token ? Math.min(token.end, to) : to;
      const part = run.text.slice(at, end);
      at = end;
      if (!token) { parts.push(part); break; }
      const span = make("span", { className: `t ${token.place ? "accepted" : token.drafted ? "bonus" : "plain"}`, textContent: part });
      span.dataset.block = token.block;
      if (token.place) span.style.setProperty("--deep", `${Math.max(35, 105 - 15 * token.place)}%`);
      parts.push(span);
    }
    return parts;
  }
  const shown = make("div", { className: "text" }, markdown(run.text, leaf));
  if (run.error) shown.append(make("p", { className: "error", role: "alert", textContent: run.error }));
  return shown;
}

function describe(block, before, number) {
  const lost = block.draft.filter(([, , accepted]) => !accepted).length;
  const said = block.draft.length ? `${block.accepted} of ${block.draft.length} drafted accepted` : "nothing drafted";
  return `Block ${number + 1}: ${said}, ${block.texts.length} written${lost ? `, ${lost} rejected` : ""}, ${(block.ms - before).toFixed(1)} ms`;
}

// The tokens of a draft's longest path.
function depth({ draft }) {
  const depths = [0];
  for (const [, parent] of draft) depths.push(depths[parent] + 1);
  return Math.max(...depths);
}

function strip(run) {
  const made = make("div", { className: "strip", role: "toolbar" });
  made.setAttribute("aria-label", "Blocks over time");
  const rejected = (block) => Math.max(0, depth(block) - block.accepted);
  const unit = STRIP / Math.min(16, Math.max(2, ...run.blocks.map((block) => block.texts.length + rejected(block))));
  const part = (kind, count) => {
    const bar = make("i", { className: kind });
    bar.style.height = `${Math.min(STRIP, count * unit)}px`;
    return bar;
  };
  let tokens = 0;
  run.blocks.forEach((block, number) => {
    const before = run.blocks[number - 1]?.ms ?? 0;
    tokens += block.texts.length;
    const bar = make("button", { type: "button", tabIndex: number ? -1 : 0 },
      part("accepted", block.accepted), part("bonus", block.texts.length - block.accepted), part("rejected", rejected(block)));
    const mean = make("i", { className: "mean" });
    mean.style.bottom = `${Math.min(STRIP, tokens / (number + 1) * unit)}px`;
    bar.append(mean);
    bar.dataset.block = number;
    bar.style.flexGrow = number ? Math.max(0.1, block.ms - before) : 0.1; // the first waits for the prompt
    bar.setAttribute("aria-label", describe(block, before, number));
    made.append(bar);
  });
  return made;
}

function numbers(run) {
  const sum = totals(run);
  const parts = [
    run.method,
    run.temperature === null ? null : `temperature ${run.temperature}`,
    `seed ${run.seed}`,
    `${sum.tokens} tokens`,
    sum.passes ? `${sum.mean.toFixed(2)} tokens a pass` : null,
    sum.speed ? `${sum.speed.toFixed(1)} tokens/s` : null,
    sum.drafted ? `${sum.accepted} of ${sum.drafted} drafted accepted` : null,
    sum.passes ? `first after ${(sum.first / 1000).toFixed(2)} s` : null,
    { stopped: "stopped", length: "cut at the most tokens" }[run.finish],
  ];
  return make("p", { className: "numbers", textContent: parts.filter(Boolean).join(" · ") });
}

function legend() {
  const key = (kind, said) => [make("span", { className: `key ${kind}` }), said];
  return make("p", { className: "numbers legend" },
    "Blocks:", ...key("accepted", "accepted"), ...key("bonus", "bonus"), ...key("rejected", "rejected"), ...key("mean", "running tokens a pass"));
}

// What a block drafted: a line where it is a chain, else its tree.
function drafted(block) {
  const visible = (said) => said.replaceAll("\n", "⏎").replace(/[\0-\x1f]/g, (control) => String.fromCharCode(0x2400 + control.charCodeAt()));
  const piece = ([said, , accepted]) => make(accepted ? "b" : "del", { textContent: visible(said) });
  const bonus = block.texts.slice(block.accepted).map((said) => make("em", { textContent: visible(said) }));
  if (block.draft.every(([, parent], place) => parent === place)) {
    const tokens = block.draft.map(piece);
    tokens.splice(block.accepted, 0, ...bonus); // where the draft ended
    return make("div", { className: "tokens" }, ...tokens);
  }
  const lists = [make("ul")];
  block.draft.forEach((node, place) => {
    const item = make("li", {}, piece(node));
    (lists[node[1]] ?? lists[0]).append(item);
    const own = lists[place + 1] = make("ul");
    item.append(own);
  });
  for (const list of lists.slice(1)) if (!list.childNodes.length) list.remove();
  return make("div", {}, lists[0], make("div", { className: "tokens" }, ...bonus));
}

// The tip of a block beside what it was asked at; its tokens and its bar stand out meanwhile.
function point(at, run, tip) {
  unpoint(tip);
  const number = Number(at.dataset.block);
  const block = run.blocks[number];
  if (!block) return;
  const sum = totals(run, number + 1);
  tip.replaceChildren(
    make("div", { textContent: describe(block, run.blocks[number - 1]?.ms ?? 0, number) }), drafted(block),
    make("div", { className: "soft", textContent: `${sum.mean.toFixed(2)} tokens a pass until here` }));
  tip.hidden = false;
  for (const same of at.closest(".run").querySelectorAll(`[data-block="${number}"]`)) same.classList.add("on");
  const box = at.getClientRects()[0] ?? at.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
  const below = box.bottom + 6;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

function unpoint(tip) {
  tip.hidden = true;
  for (const same of document.querySelectorAll(".on")) same.classList.remove("on");
}

// A run's whole element, whose `run` is what `point` reads.
function shownRun(run) {
  const made = make("div", { className: "run" }, text(run));
  if (run.blocks.length) made.append(strip(run), legend());
  if (run.finish !== "error") made.append(numbers(run));
  made.run = run;
  return made;
}

// What a race came to.
function verdict(plain, run) {
  const [slow, fast] = [totals(plain), totals(run)];
  const parts = [];
  if ([plain, run].every(({ finish }) => finish === "stop" || finish === "length")) {
    let at = 0;
    while (at < run.text.length && run.text[at] === plain.text[at]) at++;
    parts.push(plain.text === run.text ? "The same text, to the last character." :
      `The texts differ from character ${at + 1} on. A lossless method that draws its drafts keeps the distribution, not the text; at temperature 0 it keeps the text, but for near ties that are rounded apart.`);
  }
  if (slow.speed && fast.speed) {
    parts.push(`${(fast.speed / slow.speed).toFixed(2)} × the tokens/s of plain decoding, one after the other.`,
      "Plain decoding wrote last and may have found the prompt in the cache, so the times to the first block can't be compared.",
      "Methods that remember earlier outputs (such as suffix and auto) draft an answer that was written before from memory: race a new prompt.");
  }
  return make("p", { className: "verdict", role: "status", textContent: parts.join(" ") });
}
