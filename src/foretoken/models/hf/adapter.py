"""Any decoder-only causal language model of transformers, through its own modelling code.

The model gets a cache of ours, explicit positions and an additive 4-D mask; where some layers have
a sliding window, or see their own chunk of positions only, and others don't, a mask for each kind.
What can't be served so is refused when the model is loaded: by its configuration where that tells,
else by a small tree whose paths must get the logits that the model itself gives them (`_check`).

Legend: B rows, T tokens, V vocabulary, D width, L layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicCache

from foretoken.errors import ForetokenError, one_line
from foretoken.models import gguf
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, alike
from foretoken.models.context import context, lengthen
from foretoken.models.feed import Feed, chain_feed, tree_feed
from foretoken.models.hf.cache import (
    Answers,
    Storage,
    evaluating,
    grouped_heads,
    masks,
    pass_cache,
    unfit,
    unsupported,
)
from foretoken.models.hf.check import (
    check_all_read,
    check_report,
    check_sizes,
    warn_of_neighbours,
)
from foretoken.models.hf.temperature import Temperature
from foretoken.models.model import Output, eos_ids
from foretoken.trees.from_lists import from_paths

_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-2}
"""Largest relative error of a place's logits in the check; eager attention is float32 inside."""
_HALF_TOLERANCE = 0.1


def load(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool = False,
    spread: Callable[[PreTrainedModel], None] = lambda model: None,
    max_model_len: int | None = None,
) -> HFModel:
    """A checkpoint as a model of transformers. Raises `ForetokenError` where it can't be served.

    folder: or a GGUF file. spread: called before weights go to the device, to which it may bring
    some by itself. max_model_len: see `lengthen`. Attention is SDPA where the family has it, else
    eager.
    """
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = (
            gguf.config_of(folder)
            if gguf.is_named(folder)
            else AutoConfig.from_pretrained(folder, **options)
        )
        if reason := unsupported(config) or _unknown(config):
            raise ForetokenError(f"{folder} can't be served: {reason}.")
        if dtype == torch.float64 or device.type == "cpu":
            options["experts_implementation"] = "eager"  # the grouped product has no float64
        lengthen(config.get_text_config(decoder=True), max_model_len)
        check_sizes(folder, config, trust_remote_code)
        model, report = _read(
            folder,
            config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_report` refuses them, by name
            **options,
        )
        if gguf.is_named(folder) and not gguf.is_read_here(folder):
            check_all_read(folder, model)
    except ForetokenError:
        raise
    except ImportError as error:  # which names what to install
        raise ForetokenError(f"transformers can't load {folder}: {one_line(error)}.") from error
    except Exception as error:
        raise ForetokenError(
            f"transformers can't load {folder} ({one_line(error)}); check that it is a complete "
            "causal language model and fetch it again if a file is missing or truncated."
        ) from error
    check_report(folder, config, report, dict(model.named_parameters()))
    if gguf.is_named(folder) and (ends := sorted(gguf.ends_of(folder))):
        model.generation_config.eos_token_id = ends  # transformers reads one of them
    spread(model)
    return HFModel(model.to(device).eval())


def _unknown(config: Any) -> str | None:
    """Why there is no class for a configuration, like `unsupported`."""
    own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or ())
    if own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    return (
        f"transformers has no causal language model of its family, {config.model_type!r}; use a "
        "model that reads and writes text alone"
    )


def _read(folder: Path, config: Any, **options: Any) -> Any:
    """What `from_pretrained` gives of a folder or a GGUF file."""
    auto: Any = AutoModelForCausalLM
    if not gguf.is_named(folder):
        return auto.from_pretrained(folder, config=config, **options)
    if not gguf.is_read_here(folder):
        return auto.from_pretrained(folder.parent, gguf_file=folder.name, config=config, **options)
    with torch.device("meta"):
        model_class = type(auto.from_config(copy.deepcopy(config)))
    stored = gguf.weights_of(folder, options["dtype"] == torch.float16)
    tensors = {name: stored(name) for name in stored.headers}
    del options["trust_remote_code"]
    return model_class.from_pretrained(None, config=config, state_dict=tensors, **options)


class HFModel:
    """A `CausalLM` over a loaded transformers model, whose dtype, device and mode don't change."""

    backend = "transformers"

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises `ForetokenError` where the model can't be served."""
        self.model: Any = model
        self.source: Any = model
        self.name = type(model).__name__
        try:
            self._decoder: Any = _decoder(model)
        except AttributeError as error:
            raise ForetokenError(
                f"A model is a {self.name}; give a causal language model of transformers."
            ) from error
        self._answers = Answers(self._decoder)
        if reason := unsupported(model.config) or unfit(model, self._decoder):
            raise ForetokenError(f"{self.name} can't be served: {reason}.")
        config = model.config.get_text_config(decoder=True)
        self.dtype, self.device = model.dtype, model.device
        self.width, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._config, self.max_length = config, context(config)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.bytes_read = sum(w.nbytes for w in _matrices(model))
        self.eos_ids = eos_ids(getattr(model, "generation_config", None)) or eos_ids(config)
        self._embedding: Any = model.get_input_embeddings()
        self._stack = _stack(self._decoder, self.layers)
        self._temperature = Temperature(config, self._stack)
        self.levels = frozenset("abcdf" if self._stack is not None else "abcf")
        with torch.no_grad(), evaluating(model):
            self._check()
        warn_of_neighbours(model)
        first = self._storage.shapes[0]
        self.kv_heads, self.head_dim = first.heads, first.key_width
        shapes = [shape._replace(window=None) for shape in self._storage.shapes]
        if shapes != alike(self.layers, self.kv_heads, self.head_dim):
            self.levels -= {"f"}  # latents, layers that differ, or that read another's

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> KVCache:
        return self._storage.new(slots, max_length, self.max_length, spare, budget)

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        """One pass, in evaluation mode whatever mode the model is in."""
        states: dict[int, Tensor] = {}
        inputs = self._inputs(feed, cache)
        short = "c" in self.levels and (feed.last is not None or not feed.logits)
        with evaluating(self.model):
            with grouped_heads(self.device), self._temperature(feed), self._taps(hidden, states):
                out = self._decoder(**inputs) if short else self.model(**inputs)
            if not feed.logits:
                return Output(None, states)
            if short:
                return Output(self.head(_at_places(out[0], feed.last)), states)
            return Output(_at_places(out.logits, feed.last), states)

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D], in the space of `inputs_embeds`."""
        embedded: Tensor = self._embedding(tokens)
        return embedded

    def head(self, states: Tensor) -> Tensor:
        """Normed last states [..., D] -> logits [..., V].

        Through the model's own forward, with the decoder answering these states: families scale or
        cap logits in different ways.
        """
        flat = states.reshape(-1, 1, states.shape[-1])
        with self._answers(self._answer(last_hidden_state=flat)):
            out = self.model(inputs_embeds=flat, use_cache=False, return_dict=True)
        logits: Tensor = out.logits
        return logits.view(*states.shape[:-1], -1)

    def _inputs(self, feed: Feed, cache: KVCache) -> dict[str, Any]:
        """Keyword arguments of the model's forward for one pass."""
        inputs = {
            "attention_mask": masks(self._config, feed, self._storage.dtype),
            "position_ids": feed.positions,
            "past_key_values": pass_cache(cache, feed),
            "use_cache": True,
            "return_dict": True,
        }
        if feed.replaced is None:
            return {"input_ids": feed.tokens, **inputs}
        where, instead = feed.replaced
        embeds = torch.where(where[..., None], instead, self.embed(feed.tokens))
        return {"inputs_embeds": embeds, **inputs}

    @contextmanager
    def _taps(self, hidden: Seq[int], states: dict[int, Tensor]) -> Iterator[None]:
        """Catch the states asked for: 0 enters the first layer, i leaves layer i, -1 the decoder.

        Not `output_hidden_states`: there the last layer's states are normed already. Another
        thread may be reading the head, which calls the decoder too.
        """
        handles, mine = [], get_ident()

        def leave(layer: int, output: Any) -> None:
            if get_ident() == mine:
                states[layer] = output if isinstance(output, Tensor) else output[0]

        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if get_ident() == mine:
                states[0] = args[0] if args else kwargs["hidden_states"]

        try:
            for layer in hidden:
                if layer == 0:
                    first = self._stack[0]
                    handles.append(first.register_forward_pre_hook(enter, with_kwargs=True))
                else:
                    module = self._decoder if layer < 0 else self._stack[layer - 1]
                    handles.append(
                        module.register_forward_hook(lambda _, __, out, i=layer: leave(i, out))
                    )
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _check(self) -> None:
        """Score two small trees in ragged rows against the model's own forward of each path.

        The first pass also shows what a layer keeps of a token and how wide the logits are.
        """
        count = self._embedding.weight.shape[0]
        ids = [(count // 3 + i) % count for i in range(8)]
        rows, branches = [ids[:6], ids[3:5]], [[ids[6], ids[7]], [ids[7]]]
        try:
            want = self._reference([row + path for row in rows for path in branches])
            got = self._scored(rows, [branches, branches])
        except ForetokenError:
            raise
        except Exception as error:
            raise ForetokenError(
                f"{self.name} can't be served: its forward fails on a small tree "
                f"({one_line(error)}); use a model with ordinary attention in every layer, and "
                "experts_implementation='eager' where experts meet float64."
            ) from error
        for b, row in enumerate(rows):  # the tree's slots: root, first path (1, 2), second path (3)
            at = len(row) - 1
            first, second = want[2 * b, at : at + 3], want[2 * b + 1, at + 1 : at + 2]
            if not self._close(got[b], torch.cat((first, second))):
                raise ForetokenError(
                    f"{self.name} can't be served: a token tree gets other logits than its paths "
                    "do alone, so attention doesn't follow the mask and positions that it is "
                    "given; use a model with ordinary attention in every layer."
                )

    def _reference(self, texts: list[list[int]]) -> Tensor:
        """The model's own logits [B, T, V]; notes its storage, and drops level c where need be."""
        longest = max(len(text) for text in texts)
        padded = [text + [0] * (longest - len(text)) for text in texts]
        outputs: list[Any] = []
        handle = self._decoder.register_forward_hook(lambda _, __, out: outputs.append(out))
        seen = DynamicCache()
        try:
            tokens = torch.tensor(padded, device=self.device)
            logits: Tensor = self.model(
                input_ids=tokens, past_key_values=seen, use_cache=True, return_dict=True
            ).logits
        finally:
            handle.remove()
        self.vocab_size = logits.shape[-1]
        self._storage = Storage(self.name, seen, self._config)
        self._answer = type(outputs[0])
        if not self._has_head(outputs[0][0], logits):
            self.levels -= {"c"}
        return logits

    def _has_head(self, states: Tensor, logits: Tensor) -> bool:
        """Whether `head` turns the decoder's states [B, T, D] into the model's logits."""
        widths = {self._embedding.weight.shape[1], states.shape[-1], self.width}
        if len(widths) > 1 or self._decoder is self.model:  # some project on the way in and out
            return False
        try:
            return self._close(self.head(states), logits)
        except Exception:  # an unusual forward: logits then come from whole passes only
            return False

    def _scored(self, rows: list[list[int]], branches: list[list[list[int]]]) -> Tensor:
        """Logits [B, S, V] of each row's root and tree, the way the engine gets them."""
        cache = self.new_cache(2, 16)
        slots = [cache.acquire(owner) for owner in range(2)][::-1]  # rows that are not views
        self.forward(chain_feed(cache, slots, [r[:-1] for r in rows], logits=False), cache)
        for slot, row in zip(slots, rows, strict=True):
            cache.lengths[slot] += len(row) - 1
        trees = from_paths(branches, self.device)
        asked = range(self.layers + 1) if "d" in self.levels else ()
        feed = tree_feed(cache, slots, [r[-1] for r in rows], trees)
        out = self.forward(feed, cache, asked)
        assert out.logits is not None
        if set(asked) - set(out.hidden) or (asked and not self._embeds(feed, cache, out.logits)):
            self.levels -= {"d"}
        return out.logits

    def _embeds(self, feed: Feed, cache: KVCache, logits: Tensor) -> bool:
        """Whether embeddings may stand in for all tokens, and one that is no token's for the last,
        which no other sees: some families look up more by a token's id."""
        embeddings = self.embed(feed.tokens)
        embeddings[:, -1] *= 1.5
        feed.replaced = torch.ones_like(feed.tokens, dtype=torch.bool), embeddings
        try:
            got = self.forward(feed, cache).logits
        except Exception:  # of the model's own code
            return False
        return got is not None and self._close(got[:, :-1], logits[:, :-1])

    def _close(self, got: Tensor, want: Tensor) -> bool:
        """Whether logits [..., V] agree at every place, up to the rounding of the dtype."""
        got, want = got.double(), want.double()
        scale = (want - want.mean(-1, keepdim=True)).norm(dim=-1)
        tolerance = _TOLERANCE.get(self.dtype, _HALF_TOLERANCE)
        return bool(((got - want).norm(dim=-1) <= tolerance * scale).all())


def _decoder(model: PreTrainedModel) -> Any:
    """The module that turns embeddings into normed states: where transformers says that it is the
    model itself, or ModernBERT's head, which is called so, the one that holds the layers."""
    decoder: Any = model.get_decoder()
    if decoder is not model and not isinstance(decoder, torch.nn.Linear):
        return decoder
    stack = _stack(model, model.config.get_text_config(decoder=True).num_hidden_layers)
    owners = (module for module in model.modules() if stack in module.children())
    return decoder if stack is None else next(owners)


def layers_of(model: PreTrainedModel) -> Any:
    """The list of a model's decoder layers, or None where there is none."""
    config = model.config.get_text_config(decoder=True)
    return _stack(_decoder(model), int(config.num_hidden_layers))


def _stack(decoder: Any, layers: int) -> Any:
    """The list of the decoder's layers, or None where there is none."""
    for module in decoder.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers:
            return module
    return None


def _matrices(model: PreTrainedModel) -> list[Tensor]:
    """All, experts included, but an embedding that is not the head too: of that a row is read."""
    table: Any = model.get_input_embeddings().weight
    tied = getattr(model.get_output_embeddings(), "weight", None) is table
    return [p for p in model.parameters() if p.ndim > 1 and (tied or p is not table)]


def _at_places(states: Tensor, places: list[int] | None) -> Tensor:
    """[B, T, X] at one place of each row -> [B, 1, X]; as it is without places."""
    if places is None:
        return states
    index = torch.tensor(places, device=states.device)
    return states[torch.arange(len(places), device=states.device), index][:, None]
