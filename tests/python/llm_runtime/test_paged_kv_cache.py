# SPDX-License-Identifier: Apache-2.0
"""The owner of the paged KV cache: capacity, allocation, binding and release, on the twin."""

from __future__ import annotations

import dataclasses
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin as ttnn
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.paged_kv_cache import PagedKVCacheManager, torch_dtype_for_ttnn


def attention(dtype, **changes):
    paged = types.SimpleNamespace(block_size=32, max_num_blocks=8)
    fields = {
        "n_kv_heads": 8,
        "head_dim": 16,
        "kv_cache_dtype": dtype,
        "paged_attention_config": paged,
        **changes,
    }
    return types.SimpleNamespace(**fields)


class Model:
    """Attention metadata and a transactional binding; remembers what it was asked to bind."""

    def __init__(self, mesh, attentions, **config):
        blocks = [types.SimpleNamespace(attention_config=item) for item in attentions]
        self.config = types.SimpleNamespace(mesh_device=mesh, block_configs=blocks, **config)
        self.bound = None
        self.bindings = []
        self.refuse = []

    def set_kv_cache(self, cache):
        self.bindings.append(cache)
        if self.refuse and self.refuse.pop(0):
            raise RuntimeError(f"cannot bind {cache is not None}")
        self.bound = cache


@pytest.fixture
def two_devices():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield mesh
    ttnn.close_mesh_device(mesh)


@pytest.fixture
def make(two_devices):
    def build(dtypes=(ttnn.bfloat8_b, ttnn.bfloat8_b), *, dtype=ttnn.bfloat8_b, num_blocks=4, **model):
        built = Model(two_devices, [attention(item) for item in dtypes], **model)
        return built, PagedKVCacheManager(built, policy(dtype=dtype, num_blocks=num_blocks))

    return build


def policy(**changes):
    fields = {"block_size": 32, "max_num_blocks": 8, "dtype": ttnn.bfloat8_b, **changes}
    return PagedKVCacheConfig(**fields)


def flat(cache):
    return [tensor for pair in cache for tensor in pair]


@pytest.mark.covers("CFG-08")
def test_placement_defaults_to_dram(make):
    _, manager = make(num_blocks=None)
    assert not manager.config.is_resolved()
    assert manager.memory_config == ttnn.DRAM_MEMORY_CONFIG
    assert len(dataclasses.fields(manager.config)) == 5


@pytest.mark.covers("PKV-01")
def test_capacity_is_resolved_once(make):
    _, manager = make(num_blocks=None)
    assert manager.cache_shapes == ()
    final = policy(num_blocks=4)
    manager.configure(final)
    assert manager.config is final
    assert manager.cache_shapes == ((4, 4, 32, 16),) * 2
    with pytest.raises(RuntimeError, match="only once"):
        manager.configure(policy(num_blocks=5))
    assert manager.config is final


@pytest.mark.covers("PKV-04")
def test_a_resolved_manager_cannot_be_configured(make):
    _, manager = make(num_blocks=4)
    with pytest.raises(RuntimeError, match="only once"):
        manager.configure(policy(num_blocks=4))


@pytest.mark.covers("PKV-02", "PKV-03")
@pytest.mark.parametrize(
    ("change", "essence"),
    [
        ({"block_size": 16}, "block_size changed from 32 to 16"),
        ({"max_num_blocks": 16}, "max_num_blocks"),
        ({"dtype": ttnn.bfloat16}, "dtype changed"),
        ({"memory_config": ttnn.L1_MEMORY_CONFIG}, "memory_config changed"),
        ({"num_blocks": None}, "no num_blocks"),
    ],
)
def test_a_late_replacement_may_only_set_the_block_count(make, change, essence):
    _, manager = make(num_blocks=None)
    with pytest.raises(ValueError, match=essence):
        manager.configure(policy(**{"num_blocks": 4, **change}))
    assert manager.cache_shapes == ()
    manager.configure(policy(num_blocks=4, memory_config=ttnn.DRAM_MEMORY_CONFIG))


@pytest.mark.covers("PKV-05", "PKV-06")
@pytest.mark.parametrize(
    ("changes", "essence"),
    [
        (
            {"paged_attention_config": types.SimpleNamespace(block_size=16, max_num_blocks=8)},
            "layer 1: block_size 16",
        ),
        (
            {"paged_attention_config": types.SimpleNamespace(block_size=32, max_num_blocks=9)},
            "layer 1: max_num_blocks 9",
        ),
        ({"paged_attention_config": None}, "layer 1: paged_attention_config"),
        ({"head_dim": 0}, "layer 1: head_dim"),
        ({"kv_cache_dtype": None}, "layer 1: kv_cache_dtype"),
        ({"n_kv_heads": 3}, "layer 1: n_kv_heads 3 is not divisible by 2"),
        ({"n_kv_heads": True}, "layer 1: n_kv_heads"),
        ({"n_local_kv_heads": 0}, "layer 1: n_local_kv_heads"),
    ],
)
def test_a_layer_that_contradicts_the_policy_is_named(two_devices, changes, essence):
    layers = [attention(ttnn.bfloat8_b), attention(ttnn.bfloat8_b, **changes)]
    with pytest.raises(ValueError, match=essence):
        PagedKVCacheManager(Model(two_devices, layers), policy())


def test_uniform_layers_must_have_the_policy_dtype(make):
    with pytest.raises(ValueError, match="model-owned dtype"):
        make(dtype=ttnn.bfloat16)


def test_models_without_usable_layers_are_refused(two_devices):
    one = [attention(ttnn.bfloat8_b)]
    for model, essence in (
        (Model(two_devices, []), "no attention layers"),
        (Model(two_devices, one, n_layers=2), "n_layers 2"),
        (Model(two_devices, one, num_devices=True), "num_devices"),
        (Model(two_devices, [None]), "layer 0 has no attention config"),
        (types.SimpleNamespace(mesh_device=two_devices), "neither"),
        (types.SimpleNamespace(), "mesh_device"),
    ):
        with pytest.raises(ValueError, match=essence):
            PagedKVCacheManager(model, policy())


def test_metadata_may_live_on_the_model_and_local_heads_win(two_devices):
    layer = attention(ttnn.bfloat8_b, n_local_kv_heads=3)
    model = types.SimpleNamespace(
        mesh_device=two_devices, layers=[types.SimpleNamespace(attention=types.SimpleNamespace(config=layer))]
    )
    assert PagedKVCacheManager(model, policy(num_blocks=2)).cache_shapes == ((2, 3, 32, 16),)


@pytest.mark.covers("PKV-08", "PKV-09", "PKV-10", "PKV-11")
def test_server_spec(make):
    _, manager = make(num_blocks=None)
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    manager.validate_vllm_cache_spec(block_size=32, dtype=bfloat16, num_blocks=8)
    manager.validate_vllm_cache_spec(block_size=32, dtype=ml_dtypes.bfloat16)
    for spec, error, essence in (
        ({"dtype": np.dtype(np.float32)}, ValueError, r"incompatible with layer 0 .*, layer 1"),
        ({"block_size": 16}, ValueError, "block_size 16"),
        ({"num_blocks": 9}, ValueError, "9 exceeds the configured maximum 8"),
        ({"num_blocks": 0}, ValueError, "num_blocks"),
        ({"dtype": "bfloat16"}, TypeError, "torch or NumPy dtype"),
        ({"dtype": ttnn.bfloat16}, TypeError, "torch or NumPy dtype"),
    ):
        with pytest.raises(error, match=essence):
            manager.validate_vllm_cache_spec(**{"block_size": 32, "dtype": bfloat16, **spec})
    assert manager.cache_shapes == ()


def test_server_spec_with_a_torch_dtype(make):
    class dtype:
        __module__ = "torch"

        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return f"torch.{self.name}"

    _, manager = make()
    manager.validate_vllm_cache_spec(block_size=32, dtype=dtype("bfloat16"))
    with pytest.raises(ValueError, match="server dtype float16 is incompatible"):
        manager.validate_vllm_cache_spec(block_size=32, dtype=dtype("float16"))


@pytest.mark.covers("PKV-07")
def test_torch_surrogates(monkeypatch):
    names = ("bfloat16", "float32", "int32", "uint32", "uint16", "uint8")
    torch = types.SimpleNamespace(**{name: f"torch.{name}" for name in names})
    monkeypatch.setitem(sys.modules, "torch", torch)
    expected = dict.fromkeys((ttnn.bfloat16, ttnn.bfloat8_b, ttnn.bfloat4_b), "torch.bfloat16")
    expected |= {getattr(ttnn, name): f"torch.{name}" for name in names[1:]}
    assert {dtype: torch_dtype_for_ttnn(dtype) for dtype in expected} == expected
    with pytest.raises(ValueError, match="no host dtype"):
        torch_dtype_for_ttnn("float64")


@pytest.fixture
def host_zeros(monkeypatch):
    """Lists the dtype of every zero tensor that is made on the host."""
    made, zeros = [], ttnn.zeros

    def noted(shape, **options):
        assert options.get("device") is None
        made.append(options["dtype"])
        return zeros(shape, **options)

    monkeypatch.setattr(ttnn, "zeros", noted)
    return made


@pytest.mark.covers("PKV-12", "PKV-13", "PKV-15", "PKV-26")
def test_allocation(make, two_devices, host_zeros):
    model, manager = make((ttnn.bfloat8_b, ttnn.bfloat16))
    assert manager.per_layer_dtypes == (ttnn.bfloat8_b, ttnn.bfloat16)
    manager.validate_vllm_cache_spec(block_size=32, dtype=np.dtype(ml_dtypes.bfloat16))
    cache = manager.allocate()
    assert host_zeros == [ttnn.bfloat8_b, ttnn.bfloat16], "K and V, and layers of one dtype, share a host tensor"
    tensors = flat(cache)
    assert [tuple(tensor.shape) for tensor in tensors] == [(4, 4, 32, 16)] * 4
    assert [tensor.dtype for tensor in tensors] == [ttnn.bfloat8_b] * 2 + [ttnn.bfloat16] * 2
    assert {tensor.memory_config() for tensor in tensors} == {ttnn.DRAM_MEMORY_CONFIG}
    assert {tensor.layout for tensor in tensors} == {ttnn.TILE_LAYOUT}
    assert all(not tensor.cpu().to_numpy().any() for tensor in tensors)
    assert model.bound is cache
    manager.validate_borrowed_handle(cache)
    context = manager.bound_context
    assert context.config is manager.config
    assert [a is b for a, b in zip(flat(context.tensors), tensors, strict=True)] == [True] * 4
    assert context.cache_shapes == ((4, 4, 32, 16),) * 2
    assert context.per_layer_dtypes == (ttnn.bfloat8_b, ttnn.bfloat16)
    assert len({tensor.buffer_id for tensor in tensors}) == 4
    assert manager.allocated_bytes == 49152
    manager.release()
    assert manager.allocated_bytes == 0
    assert two_devices.live_tensors() == []


def test_layers_of_one_dtype_share_a_host_tensor(make, host_zeros):
    _, manager = make([ttnn.bfloat8_b] * 5)
    manager.allocate()
    assert host_zeros == [ttnn.bfloat8_b]


class TestFiles:
    NAMES = tuple(f"empty_{kind}cache_paged_attention(4, 4, 32, 16).tensorbin" for kind in "kv")

    @pytest.fixture
    def with_folder(self, make, tmp_path):
        """A manager like `make`, whose model has a cache folder (which does not exist yet)."""

        def build(*arguments, **options):
            model, manager = make(*arguments, **options)
            model.model_args = types.SimpleNamespace(model_cache_path=tmp_path / "cache")
            return manager

        return build

    def files(self, tmp_path):
        return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())

    @pytest.mark.covers("PKV-16")
    def test_packed_zeros_of_one_dtype_are_kept(self, with_folder, tmp_path, host_zeros):
        """One file for the keys and one for the values, which every layer and every later start takes."""
        first = with_folder()
        first.allocate()
        assert self.files(tmp_path) == list(self.NAMES)
        assert host_zeros == [ttnn.bfloat8_b] * 2
        second = with_folder()
        tensors = flat(second.allocate())
        assert host_zeros == [ttnn.bfloat8_b] * 2, "the files were read"
        assert [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors] == [(ttnn.bfloat8_b, (4, 4, 32, 16))] * 4
        assert {tensor.layout for tensor in tensors} == {ttnn.TILE_LAYOUT}
        assert all(not tensor.cpu().to_numpy().any() for tensor in tensors)

    @pytest.mark.covers("PKV-17")
    @pytest.mark.parametrize(
        ("dtypes", "dtype"),
        [((ttnn.bfloat8_b, ttnn.bfloat4_b), ttnn.bfloat8_b), ((ttnn.bfloat16, ttnn.bfloat16), ttnn.bfloat16)],
        ids=["mixed", "nothing to pack"],
    )
    def test_other_zeros_are_not(self, with_folder, tmp_path, dtypes, dtype):
        with_folder(dtypes, dtype=dtype).allocate()
        assert self.files(tmp_path) == []

    @pytest.mark.parametrize("damage", ["cut", "other dtype"])
    def test_a_file_that_does_not_fit_is_made_again(self, with_folder, tmp_path, damage, host_zeros):
        with_folder().allocate()
        path = tmp_path / "cache" / self.NAMES[0]
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:100])
        else:
            ttnn.dump_tensor(path, ttnn.Tensor(np.ones((4, 4, 32, 16), np.float32), ttnn.bfloat16))
        host_zeros.clear()
        tensors = flat(with_folder().allocate())
        assert host_zeros == [ttnn.bfloat8_b], "the values' file was good"
        assert {tensor.dtype for tensor in tensors} == {ttnn.bfloat8_b}
        assert ttnn.load_tensor(path).dtype is ttnn.bfloat8_b

    def test_a_folder_that_cannot_be_written_costs_nothing_but_time(self, with_folder, tmp_path, caplog):
        (tmp_path / "cache").write_text("a file is in the way")
        assert len(flat(with_folder().allocate())) == 4
        assert "cannot be written" in caplog.text
        assert self.files(tmp_path) == ["cache"]


def test_an_explicit_placement_is_used(two_devices):
    model = Model(two_devices, [attention(ttnn.bfloat8_b)])
    manager = PagedKVCacheManager(model, policy(num_blocks=1, memory_config=ttnn.L1_MEMORY_CONFIG))
    assert flat(manager.allocate())[0].memory_config() == ttnn.L1_MEMORY_CONFIG


@pytest.mark.covers("PKV-25")
def test_capacity_in_tokens(make):
    assert make(num_blocks=None)[1].capacity_tokens is None
    assert make(num_blocks=4)[1].capacity_tokens == 128


@pytest.mark.covers("PKV-14")
def test_only_the_exact_handle_is_accepted(make):
    _, manager = make()
    with pytest.raises(RuntimeError, match="no KV cache is bound"):
        manager.validate_borrowed_handle([])
    cache = manager.allocate()
    for copied in ([list(pair) for pair in cache], list(cache), tuple(cache), None):
        with pytest.raises(ValueError, match="exact manager-owned"):
            manager.validate_borrowed_handle(copied)
    key, value = cache[0]
    for change, essence in (
        ([value, key], "layer 0 K"),
        ([key, key], "layer 0 V"),
        ([key], "pairs"),
        (7, "pairs"),
    ):
        cache[0] = change
        with pytest.raises(ValueError, match=essence):
            manager.validate_borrowed_handle(cache)
    cache[0] = [key, value]
    manager.validate_borrowed_handle(cache)
    last = cache.pop()
    with pytest.raises(ValueError, match="has 2 tensors, the manager owns 4"):
        manager.validate_borrowed_handle(cache)
    cache.append(last)
    manager.validate_borrowed_handle(cache)


@pytest.mark.covers("PKV-18", "PKV-19")
def test_allocation_happens_once_and_needs_a_capacity(make):
    model, manager = make(num_blocks=None)
    with pytest.raises(RuntimeError, match="must be resolved"):
        manager.allocate()
    manager.configure(policy(num_blocks=2))
    cache = manager.allocate()
    with pytest.raises(RuntimeError, match="already been allocated"):
        manager.allocate()
    assert model.bound is cache
    with pytest.raises(RuntimeError, match="only once"):
        manager.configure(policy(num_blocks=3))


@pytest.mark.covers("PKV-20")
def test_a_failed_allocation_frees_the_earlier_ones_and_can_be_retried(make, two_devices):
    model, manager = make()
    two_devices.faults.fail(op="to_device", at=2, error=MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        manager.allocate()
    assert model.bindings == []
    assert two_devices.counters.calls["deallocate"] == 1
    assert two_devices.live_tensors() == []
    assert manager.bound_context is None
    assert model.bound is None
    assert model.bindings == []
    assert manager.allocate() is model.bound


def test_rollback_frees_newest_first(make, two_devices, monkeypatch):
    freed, made = [], []
    real_free, upload = ttnn.deallocate, ttnn.to_device
    monkeypatch.setattr(ttnn, "deallocate", lambda tensor: (freed.append(tensor), real_free(tensor)))
    monkeypatch.setattr(ttnn, "to_device", lambda *args, **kwargs: made.append(upload(*args, **kwargs)) or made[-1])
    _, manager = make()
    two_devices.faults.fail(op="to_device", at=3)
    with pytest.raises(RuntimeError, match="to_device"):
        manager.allocate()
    assert freed == made[::-1]


@pytest.mark.covers("PKV-21")
def test_release_unbinds_first_and_is_terminal(make, monkeypatch):
    model, manager = make()
    cache = manager.allocate()
    events = []
    real = ttnn.deallocate
    monkeypatch.setattr(ttnn, "deallocate", lambda tensor: (events.append(tensor), real(tensor)))
    monkeypatch.setattr(model, "set_kv_cache", lambda value: events.append(value))
    expected = [None, *flat(cache)]
    manager.release()
    assert events == expected
    assert manager.bound_context is None
    manager.release()
    assert len(events) == 5
    with pytest.raises(RuntimeError, match="terminal"):
        manager.allocate()
    with pytest.raises(RuntimeError, match="no KV cache is bound"):
        manager.validate_borrowed_handle(cache)


@pytest.mark.covers("PKV-22")
def test_release_attempts_all_and_retries_what_failed(make, two_devices):
    model, manager = make()
    tensors = flat(manager.allocate())
    two_devices.faults.fail(op="deallocate", at=1)
    with pytest.raises(RuntimeError, match="failed to deallocate 1") as raised:
        manager.release()
    assert len(raised.value.cleanup_failures) == 1
    assert raised.value.__cause__ is raised.value.cleanup_failures[0]
    assert [tensor.is_allocated() for tensor in tensors] == [True, False, False, False]
    assert two_devices.counters.calls["deallocate"] == 4
    assert manager.bound_context is None
    assert model.bound is None
    manager.release()
    assert two_devices.counters.calls["deallocate"] == 5
    assert not tensors[0].is_allocated()
    assert model.bindings[1:] == [None]


@pytest.mark.covers("PKV-23")
def test_leftovers_of_a_failed_allocation_are_released_later(make, two_devices):
    _, manager = make()
    two_devices.faults.fail(op="to_device", at=2)
    two_devices.faults.fail(op="deallocate", at=1)
    with pytest.raises(RuntimeError, match="to_device") as raised:
        manager.allocate()
    assert len(raised.value.cleanup_failures) == 1
    assert len(two_devices.live_tensors()) == 1
    manager.release()
    assert two_devices.counters.calls["deallocate"] == 2
    assert two_devices.live_tensors() == []
    with pytest.raises(RuntimeError, match="terminal"):
        manager.allocate()


def test_leftovers_block_the_next_allocation_until_they_are_gone(make, two_devices):
    model, manager = make()
    two_devices.faults.fail(op="to_device", at=2)
    two_devices.faults.fail(op="deallocate", at=1, times=2)
    with pytest.raises(RuntimeError, match="to_device"):
        manager.allocate()
    with pytest.raises(RuntimeError, match="earlier attempt"):
        manager.allocate()
    assert len(two_devices.live_tensors()) == 1
    cache = manager.allocate()
    assert model.bound is cache
    assert len(two_devices.live_tensors()) == 4


@pytest.mark.covers("PKV-24")
def test_release_before_allocation_is_terminal_and_leaves_the_model_alone(make):
    model, manager = make()
    manager.release()
    manager.release()
    with pytest.raises(RuntimeError, match="terminal"):
        manager.allocate()
    assert model.bindings == []


def test_a_failed_binding_is_undone(make, two_devices):
    model, manager = make()
    model.refuse = [True]
    with pytest.raises(RuntimeError, match="cannot bind True"):
        manager.allocate()
    assert len(model.bindings) == 2 and model.bindings[1] is None
    assert two_devices.live_tensors() == []
    assert manager.allocate() is model.bound


def test_when_even_unbinding_fails_nothing_is_freed(make, two_devices):
    model, manager = make()
    model.refuse = [True, True, True]
    with pytest.raises(RuntimeError, match="cannot bind True") as raised:
        manager.allocate()
    assert [str(error) for error in raised.value.cleanup_failures] == ["cannot bind False"]
    assert len(two_devices.live_tensors()) == 4
    assert manager.bound_context is not None
    with pytest.raises(RuntimeError, match="cannot bind False"):
        manager.release()
    assert len(two_devices.live_tensors()) == 4
    manager.release()
    assert two_devices.live_tensors() == []
