// Conversations as trees of messages, kept in the browser. An edit or another answer is a sibling.

const STORE = "foretoken.conversation."; // with an id: each has its own place, as tabs save beside each other
const SETTINGS = "foretoken.settings";

function stored(key, otherwise) {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
}

// All that are stored, the oldest first. An answer that was being written has been stopped.
function storedConversations() {
  let keys = [];
  try { keys = Object.keys(localStorage).filter((key) => key.startsWith(STORE)); } catch { /* the browser keeps nothing */ }
  const found = keys.map((key) => stored(key, null)).filter(Boolean).sort((one, other) => one.made - other.made);
  for (const { run, plain } of found.flatMap(({ nodes }) => nodes)) {
    for (const own of [run, plain]) if (own?.finish === null) own.finish = "stopped";
  }
  return found;
}

class Conversations {
  constructor(tell) {
    this.tell = tell; // what the user is told where the browser keeps nothing
    this.all = storedConversations();
    this.current = this.all.at(-1) ?? this.fresh();
  }

  fresh() {
    const empty = this.all.find((one) => !one.nodes.length);
    this.current = empty ?? { id: crypto.randomUUID?.() ?? String(Math.random()), made: Date.now(), title: "New conversation", nodes: [], leaf: null };
    if (!empty) this.all.push(this.current);
    return this.current;
  }

  // Another tab's conversation as it is now; null: it is deleted.
  replace(id, one) {
    this.all = [...this.all.filter((other) => other.id !== id), ...(one ? [one] : [])].sort((some, other) => some.made - other.made);
    if (this.current.id === id) this.current = one ?? this.all.at(-1) ?? this.fresh();
  }

  remove(id) {
    try { localStorage.removeItem(STORE + id); } catch { /* it wasn't kept */ }
    this.replace(id, null);
  }

  // Store the conversation that is shown.
  save() {
    let dropped = 0;
    for (;;) {
      try {
        localStorage.setItem(STORE + this.current.id, JSON.stringify(this.current));
        break;
      } catch (error) {
        const oldest = this.all.find((one) => one !== this.current && one.nodes.length);
        if (error.name !== "QuotaExceededError" || !oldest) {
          this.tell("The browser keeps no conversations; this one ends with the page.");
          return;
        }
        this.remove(oldest.id);
        dropped++;
      }
    }
    if (dropped) this.tell(`The browser's storage was full; the oldest conversations (${dropped}) were removed.`);
  }

  // Add a message after another (null: as the first), and show it.
  add(parent, message) {
    const { current } = this;
    const node = { ...message, id: current.nodes.length, parent };
    current.nodes.push(node);
    current.leaf = node.id;
    if (parent === null && node.role === "user") current.title = node.content.slice(0, 60) || current.title;
    return node;
  }

  get(id) { return this.current.nodes[id]; }

  // The messages that are shown, from the first.
  path(leaf = this.current.leaf) {
    const found = [];
    for (let id = leaf; id !== null; id = this.get(id).parent) found.unshift(this.get(id));
    return found;
  }

  siblings(node) { return this.current.nodes.filter((other) => other.parent === node.parent); }

  // Show a message's branch, down to its newest end.
  show(node) {
    let leaf = node;
    for (let next; (next = this.current.nodes.findLast((other) => other.parent === leaf.id));) leaf = next;
    this.current.leaf = leaf.id;
    this.save();
  }
}
