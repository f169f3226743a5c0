// Requests, and what their streams tell.
//
// A run is one answer as it came: text; blocks, of which each has the texts of its tokens,
// how many of them had been drafted, the draft, and the milliseconds since the request arrived.

async function failure(response) {
  try { return (await response.json()).error.message; } catch { return `The server answered ${response.status}.`; }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function card(key) {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) throw new Error(await failure(response));
  return (await response.json()).data[0];
}

// The events of a stream, as objects.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let kept = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (kept + value).split("\n\n");
    kept = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

// Write an answer into `run`; `changed` is called as it grows. Errors are told in `run.error`.
async function answer(run, body, key, signal, changed) {
  Object.assign(run, { text: "", blocks: [], finish: null, error: null });
  changed();
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(key), signal,
      body: JSON.stringify({ ...body, stream: true, foretoken: { blocks: true } }),
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const [choice] = event.choices;
      if (!choice) continue;
      run.text += choice.delta.content ?? "";
      run.blocks.push(...(choice.foretoken?.blocks ?? []).map(kept));
      run.finish = choice.finish_reason ?? run.finish;
      changed();
    }
    if (!run.finish) throw new Error("The connection was lost; ask for another answer.");
  } catch (error) {
    if (signal.aborted) run.finish = "stopped";
    else Object.assign(run, { finish: "error", error: error.message });
  }
  changed();
}

function kept(block) {
  return {
    texts: block.tokens, accepted: block.accepted, ms: Math.round(10 * block.ms) / 10,
    draft: block.draft.map(({ text, parent, accepted }) => [text, parent, accepted ? 1 : 0]),
  };
}

// What a run comes to, up to a block of it.
function totals(run, count = run.blocks.length) {
  const blocks = run.blocks.slice(0, count);
  const tokens = blocks.reduce((sum, { texts }) => sum + texts.length, 0);
  const drafted = blocks.reduce((sum, { draft }) => sum + draft.length, 0);
  const accepted = blocks.reduce((sum, block) => sum + block.accepted, 0);
  const first = blocks[0]?.ms ?? 0;
  const writing = (blocks.at(-1)?.ms ?? 0) - first; // after the first block, whose time is the prompt's too
  const later = tokens - (blocks[0]?.texts.length ?? 0);
  return { tokens, drafted, accepted, first, writing, passes: blocks.length, mean: tokens / (blocks.length || 1), speed: writing > 0 ? 1000 * later / writing : null };
}

// A run as it stood after so many milliseconds.
function asOf(run, ms) {
  const blocks = run.blocks.filter((block) => block.ms <= ms);
  const length = blocks.reduce((sum, { texts }) => sum + texts.join("").length, 0);
  const ended = blocks.length === run.blocks.length;
  return { ...run, blocks, text: ended ? run.text : run.text.slice(0, length) };
}
