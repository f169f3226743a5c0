// Conversations as trees of messages, kept in the browser. An edit or another answer is a sibling.

const STORE = "foretoken.conversations";
const SETTINGS = "foretoken.settings";

function stored(key, otherwise) {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
}

class Conversations {
  constructor(tell) {
    this.tell = tell; // what the user is told where the browser keeps nothing
    this.all = stored(STORE, []);
    this.current = this.all.at(-1) ?? this.fresh();
  }

  fresh() {
    const empty = this.all.find((one) => !one.nodes.length);
    this.current = empty ?? { id: crypto.randomUUID?.() ?? String(Math.random()), title: "New conversation", nodes: [], leaf: null };
    if (!empty) this.all.push(this.current);
    return this.current;
  }

  remove(id) {
    this.all = this.all.filter((one) => one.id !== id);
    if (this.current.id === id) this.current = this.all.at(-1) ?? this.fresh();
    this.save();
  }

  save() {
    let dropped = 0;
    for (;;) {
      try {
        localStorage.setItem(STORE, JSON.stringify(this.all.filter((one) => one.nodes.length)));
        break;
      } catch (error) {
        const oldest = this.all.findIndex((one) => one !== this.current && one.nodes.length);
        if (error.name !== "QuotaExceededError" || oldest < 0) {
          this.tell("The browser keeps no conversations; this one ends with the page.");
          return;
        }
        this.all.splice(oldest, 1);
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
