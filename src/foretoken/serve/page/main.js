// The page: what is shown, and what its controls do.

const at = (id) => document.getElementById(id);
const log = at("log"), tip = at("tip"), said = at("said");
const tell = (told) => { at("notice").textContent = told; };
const conversations = new Conversations(tell);
const settings = { tint: true, ...stored(SETTINGS, {}) };
let model = null; // its card
let running = null; // {node, abort, keep} while an answer is written; keep() saves it so far
let replaying = 0;

// Shown messages

function articleOf(node) {
  const made = make("article", { className: node.role });
  made.dataset.node = node.id;
  fill(made, node);
  return made;
}

function fill(article, node) {
  const busy = running?.node === node;
  if (node.role === "user") {
    article.replaceChildren(make("div", { className: "body", textContent: node.content }), actions(node));
  } else if (node.plain) {
    const racer = (name, run) => make("section", { className: "racer", ariaLabel: name }, make("strong", { textContent: name }), shownRun(run));
    const both = make("div", { className: "racers" }, racer("Plain decoding", node.plain), racer(node.run.method, node.run));
    article.replaceChildren(both, ...(busy ? [] : [verdict(node.plain, node.run), actions(node)]));
  } else article.replaceChildren(shownRun(node.run), ...(busy ? [] : [actions(node)]));
  article.setAttribute("aria-busy", busy);
}

function actions(node) {
  const button = (name, act) => make("button", { type: "button", textContent: name, onclick: act, disabled: running !== null });
  const siblings = conversations.siblings(node);
  const place = siblings.indexOf(node);
  const made = make("div", { className: "actions" });
  if (siblings.length > 1) {
    const turn = (sign, name, other) => {
      const made = button(sign, () => { conversations.show(other); render(); });
      made.setAttribute("aria-label", name);
      made.disabled ||= !other;
      return made;
    };
    made.append(turn("‹", "Earlier branch", siblings[place - 1]), `${place + 1}/${siblings.length}`, turn("›", "Later branch", siblings[place + 1]));
  }
  if (node.role === "user") made.append(button("Edit", () => edit(node)));
  else {
    made.append(button("Regenerate", () => regenerate(node)));
    made.append(button("Copy", () => copy(node.content)));
    if (node.plain) made.append(button("Replay", () => replay(node)));
  }
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch { // without a secure context there is no clipboard
    tell(isSecureContext ? "The browser doesn't let the page copy." : "Browsers let pages copy over https and from this machine only; select the text instead.");
  }
}

function list() {
  at("conversations").replaceChildren(...conversations.all.toReversed().map((one) => {
    const open = make("button", { type: "button", textContent: one.title, disabled: running !== null, onclick: () => { unedit(); conversations.current = one; close(); render(); } });
    if (one === conversations.current) open.setAttribute("aria-current", "true");
    const remove = make("button", { type: "button", textContent: "×", disabled: running !== null, onclick: () => { unedit(); conversations.remove(one.id); render(); } });
    remove.setAttribute("aria-label", `Delete ${one.title}`);
    return make("li", {}, open, remove);
  }));
}

function render() {
  unpoint(tip);
  replaying++;
  list(); // before the log: a conversation that can't be shown can be left and deleted
  log.replaceChildren(...conversations.path().map(articleOf));
  log.scrollTop = log.scrollHeight;
  at("stop").hidden = running === null;
  at("send").disabled = running !== null || model === null;
  at("fresh").disabled = running !== null;
  document.body.classList.toggle("tinted", settings.tint);
}

// Answers

function bodyOf(parent, run) {
  const messages = conversations.path(parent).map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: model.id, messages, seed: run.seed };
  for (const name of ["max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]) {
    if (settings[name] !== undefined) body[name] = settings[name];
  }
  if (run.temperature !== null) body.temperature = run.temperature;
  if (run.plain) body.max_draft_tokens = 0;
  return body;
}

async function write(parent) {
  if (running || !model) return;
  const seed = settings.seed ?? Math.floor(Math.random() * 2 ** 31);
  const number = at("temperature").valueAsNumber;
  const chosen = { seed, temperature: Number.isNaN(number) ? null : number, text: "", blocks: [], finish: null };
  const plain = { ...chosen, plain: true, method: "plain decoding" };
  const drafting = { ...chosen, plain: false, method: model.method };
  const race = at("race").checked;
  const node = conversations.add(parent, { role: "assistant", content: "", run: race || at("method").value !== "plain" ? drafting : plain });
  if (race) node.plain = plain;
  const abort = new AbortController();
  const keep = () => {
    node.content = node.run.text || node.plain?.text || "";
    conversations.save();
  };
  running = { node, abort, keep };
  tell("");
  keep();
  render();
  const keeping = setInterval(keep, 1000);
  // The method first: those that remember outputs would copy plain decoding's.
  for (const run of race ? [node.run, plain] : [node.run]) {
    await answer(run, bodyOf(parent, run), settings.key, abort.signal, () => grown(node));
  }
  clearInterval(keeping);
  running = null;
  keep();
  render();
}

let drawn = false;
function grown(node) {
  if (drawn) return;
  drawn = true;
  setTimeout(() => { // the whole answer is drawn anew, so not for each block
    drawn = false;
    const article = log.querySelector(`[data-node="${node.id}"]`);
    if (running?.node !== node || !article) return;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    unpoint(tip);
    fill(article, node);
    if (follows) log.scrollTop = log.scrollHeight;
  }, 200);
}

function send() {
  const content = said.value.trim();
  if (!content || running || !model) return;
  const replaces = said.dataset.replaces;
  const parent = replaces === undefined ? conversations.current.leaf : conversations.get(Number(replaces)).parent;
  if (parent !== null && !conversations.get(parent).content) {
    tell("No message can follow an empty answer: regenerate that, or edit the message before it.");
    return;
  }
  said.value = "";
  delete said.dataset.replaces;
  write(conversations.add(parent, { role: "user", content }).id);
}

function edit(node) {
  said.value = node.content;
  said.dataset.replaces = node.id;
  tell("Sending makes a branch beside the edited message; Esc keeps it as it was.");
  said.focus();
}

// The edited message stays as it was.
function unedit() {
  if (said.dataset.replaces === undefined) return;
  delete said.dataset.replaces;
  said.value = "";
  tell("");
}

const regenerate = (node) => write(node.parent);
const newest = (role) => conversations.path().findLast((node) => node.role === role);

// Both racers as they wrote, slower where it would be over too soon.
function replay(node) {
  const article = log.querySelector(`[data-node="${node.id}"]`);
  const last = Math.max(...[node.plain, node.run].map((run) => run.blocks.at(-1)?.ms ?? 0));
  const times = Math.max(1, Math.round(4000 / Math.max(1, last)));
  const began = performance.now(), turn = ++replaying;
  tell(times > 1 ? `Shown ${times} times slower than it was.` : "");
  (function frame() {
    const ms = (performance.now() - began) / times;
    if (turn !== replaying) return;
    const places = article.querySelectorAll(".racer .run");
    [node.plain, node.run].forEach((run, i) => places[i].replaceWith(shownRun(asOf(run, ms))));
    if (ms < last) requestAnimationFrame(frame);
    else fill(article, node);
  })();
}

// Controls

function close() {
  at("side").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
}

function fresh() {
  if (running) return;
  unedit();
  conversations.fresh();
  close();
  render();
  said.focus();
}

function escape() {
  if (running) running.abort.abort();
  else unedit();
  unpoint(tip);
}

const shortcuts = {
  KeyN: fresh,
  KeyR: () => { const node = newest("assistant"); if (node) regenerate(node); },
  KeyE: () => { const node = newest("user"); if (node && !running) edit(node); },
  KeyC: () => at("race").click(),
  KeyS: () => { if (!at("settings").open) at("settings").showModal(); },
  KeyT: () => { document.querySelector("[data-set=tint]").click(); },
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.altKey && !event.ctrlKey && !event.metaKey && shortcuts[event.code]) {
    event.preventDefault();
    shortcuts[event.code]();
  } else if (event.key === "Escape" && !at("settings").open) escape();
  else if (event.key === "/" && !typing && !at("settings").open) { event.preventDefault(); said.focus(); }
  else if (event.key === "Enter" && event.target === said && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  else if (event.target.parentElement?.className === "strip" && /^Arrow(Left|Right)$/.test(event.key)) {
    const next = event.key === "ArrowRight" ? event.target.nextElementSibling : event.target.previousElementSibling;
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
});

for (const kind of ["mouseover", "focusin", "click"]) {
  log.addEventListener(kind, ({ target }) => {
    const block = target.closest("[data-block]");
    if (block) point(block, block.closest(".run").run, tip);
    else unpoint(tip);
  });
}
log.addEventListener("mouseleave", () => unpoint(tip));
log.addEventListener("focusout", () => unpoint(tip));
log.addEventListener("scroll", () => unpoint(tip));

at("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("stop").addEventListener("click", escape);
at("fresh").addEventListener("click", fresh);
at("set").addEventListener("click", shortcuts.KeyS);
at("menu").addEventListener("click", () => at("menu").setAttribute("aria-expanded", at("side").classList.toggle("open")));

addEventListener("pagehide", () => {
  running?.abort.abort(); // stopped, rather than lost with the connection
  running?.keep();
});

// Another tab saved or deleted a conversation. What is being written here is saved over it.
addEventListener("storage", ({ key, newValue }) => {
  if (!key?.startsWith(STORE)) return;
  const id = key.slice(STORE.length), open = conversations.current.id === id;
  if (open && running) return;
  if (open && newValue === null) unedit();
  conversations.replace(id, JSON.parse(newValue));
  if (open) render();
  else list();
});

for (const field of document.querySelectorAll("[data-set]")) {
  const name = field.dataset.set, kept = settings[name];
  if (field.type === "checkbox") field.checked = kept ?? false;
  else field.value = kept ?? "";
  field.addEventListener("change", () => {
    const value = field.type === "checkbox" ? field.checked : field.type === "number" ? field.valueAsNumber : field.value;
    if (value === "" || Number.isNaN(value)) delete settings[name];
    else settings[name] = value;
    try { localStorage.setItem(SETTINGS, JSON.stringify(settings)); } catch { tell("The browser keeps no settings; they end with the page."); }
    document.body.classList.toggle("tinted", settings.tint);
    if (name === "key") load();
  });
}

async function load() {
  try {
    model = await card(settings.key);
    at("model").textContent = `${model.id} · ${model.method}`;
    const drafts = model.method !== "autoregressive";
    const options = drafts ? [[model.method, "drafting"]] : [];
    at("method").replaceChildren(...[...options, ["plain decoding", "plain"]].map(([name, value]) => make("option", { textContent: name, value })));
    at("race").disabled = !drafts;
    tell("");
  } catch (error) {
    model = null;
    tell(`${error.message} Settings has a field for an API key.`);
  }
  render();
}

load();
said.focus();
