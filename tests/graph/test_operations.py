"""Each expression against PyTorch's own operation: values and gradients, in double precision."""

from functools import reduce

import numpy as np
import pytest
from cases import slow

torch = pytest.importorskip("torch", "2.9", reason="extra torch")
jax = pytest.importorskip("jax", reason="extra jax")

from torch.nn import functional  # noqa: E402
from torch_agreement import agreement  # noqa: E402

from parenvs.graph.pytorch import step  # noqa: E402, F401  # it fills the table
from parenvs.graph.pytorch.operations import OPERATIONS, RANDOM  # noqa: E402
from parenvs.graph.pytorch.randoms import Key  # noqa: E402


def _(*shape):
    """Random numbers around zero."""
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape):
    return _(*shape).abs() + 0.5


def held(tensor):
    """A tensor that PyTorch gives no gradient for."""
    tensor.held = True
    return tensor


def whole(below, *shape):
    return torch.randint(0, below, shape)


def image():
    return _(2, 4, 7, 6)


def definite():
    """Two symmetric matrices with positive eigenvalues."""
    root = _(2, 3, 3)
    return root @ root.mT + 3 * torch.eye(3)


X, S = (3, 4), (2, 3, 4)
UNARY = (
    "abs alias asinh atan ceil clone cos cosh erf erfc exp expm1 floor gelu "
    "neg relu round sign sigmoid sin sinh tan tanh trunc elu leaky_relu hardtanh isnan isinf"
)
POSITIVE = "log log10 log1p log2 reciprocal rsqrt sqrt lgamma digamma"
BINARY = "maximum minimum mul.Tensor add.Tensor sub.Tensor div.Tensor atan2 fmod.Tensor"
COMPARED = "eq.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor ne.Tensor logical_and logical_xor"
CASES = [
    *[(name, lambda: [_(*X)]) for name in UNARY.split()],
    *[(name, lambda: [positive(*X)]) for name in POSITIVE.split()],
    *[(name, lambda: [_(3, 4), positive(4)]) for name in BINARY.split()],
    *[(name, lambda: [whole(3, 3, 4), whole(3, 4)]) for name in COMPARED.split()],
    *[(name, lambda: [whole(9, 3, 4), 4]) for name in ("remainder.Scalar", "bitwise_and.Scalar")],
    ("acos", lambda: [_(*X).clamp(-0.9, 0.9)]),
    ("asin", lambda: [_(*X).clamp(-0.9, 0.9)]),
    ("atanh", lambda: [_(*X).clamp(-0.9, 0.9)]),
    ("add.Tensor", lambda: [whole(9, 3), _(2, 3), {"alpha": 0.5}]),
    ("sub.Tensor", lambda: [_(2, 3), _(3), {"alpha": 2}]),
    ("remainder.Tensor", lambda: [_(*X), _(*X)]),
    ("div.Tensor", lambda: [whole(9, 3), whole(3, 3) + 1]),
    ("div.Tensor_mode", lambda: [whole(9, 3) - 4, whole(3, 3) + 1, {"rounding_mode": "trunc"}]),
    ("div.Tensor_mode", lambda: [_(5), _(5), {"rounding_mode": "floor"}]),
    ("pow.Tensor_Scalar", lambda: [_(*X), 3]),
    ("pow.Tensor_Scalar", lambda: [positive(*X), 0.5]),
    ("pow.Tensor_Scalar", lambda: [positive(*X), -1.7]),
    ("pow.Scalar", lambda: [2.0, _(*X)]),
    ("pow.Tensor_Tensor", lambda: [positive(*X), _(*X)]),
    ("clamp", lambda: [_(*X), -0.5, 0.5]),
    ("clamp", lambda: [whole(9, 3), 2, None]),
    ("where.self", lambda: [_(*X) > 0, _(*X), _(4)]),
    ("gelu", lambda: [_(*X), {"approximate": "tanh"}]),
    ("_to_copy", lambda: [_(*X), {"dtype": torch.int64}]),
    # reductions
    ("sum.dim_IntList", lambda: [_(*S), [0, -1], True]),
    ("mean", lambda: [_(*S)]),
    ("mean.dim", lambda: [_(*S), [-2]]),
    ("prod.dim_int", lambda: [positive(*S), 1]),
    ("amax", lambda: [_(*S), [1]]),
    ("amin", lambda: [_(*S), [1, 2], True]),
    ("max.dim", lambda: [_(*S), 1]),
    ("argmax", lambda: [_(*S), -1]),
    ("any.dim", lambda: [_(*S) > 1, 1]),
    ("var.correction", lambda: [_(*S), [1]]),
    ("var.correction", lambda: [_(*S), [0, 2], {"correction": 0, "keepdim": True}]),
    ("var_mean.correction", lambda: [_(*S), [2], {"correction": 1}]),
    ("linalg_vector_norm", lambda: [_(*S), 2, [1]]),
    ("cumsum", lambda: [_(*S), 1]),
    ("cumsum", lambda: [_(*S) > 0, 1]),
    ("cumprod", lambda: [_(*S), 1]),
    ("median.dim", lambda: [_(*S), -1]),
    ("median", lambda: [_(*S)]),
    ("_cdist_forward", lambda: [_(2, 3, 4), _(2, 5, 4), 2.0, None]),
    ("_cdist_forward", lambda: [_(2, 3, 4), _(2, 5, 4), 1.0, None]),
    ("_softmax", lambda: [_(*S), 1, False]),
    ("_log_softmax", lambda: [_(*S), -1, False]),
    # shapes
    ("expand", lambda: [_(3, 1), [2, -1, 4]]),
    ("permute", lambda: [_(*S), [2, 0, -2]]),
    ("squeeze.dims", lambda: [_(1, 3, 1), [0, 1]]),
    ("cat", lambda: [[_(2, 3), torch.zeros(0, dtype=torch.float64), _(1, 3)], 0]),
    ("slice.Tensor", lambda: [_(6, 5), 0, -5, 9, 2]),
    ("select.int", lambda: [_(*S), 1, -1]),
    ("split_with_sizes", lambda: [_(6, 2), [1, 3, 2]]),
    ("slice_scatter", lambda: [_(6, 5), _(2, 5), 0, 1, 3]),
    ("slice_scatter", lambda: [_(6, 5), _(3, 5), 0, 0, 6, 2]),
    ("flip", lambda: [_(*S), [0, -1]]),
    ("repeat", lambda: [_(2, 3), [2, 1, 2]]),
    ("constant_pad_nd", lambda: [_(*S), [1, -1, 0, 2], 0.5]),
    ("as_strided", lambda: [_(4, 6), [3, 2], [6, 2], 1]),
    ("diagonal", lambda: [_(*S), 1, 1, 2]),
    ("tril_indices", lambda: [3, 5, -1]),
    ("triu_indices", lambda: [4, 3, 1]),
    ("arange.start_step", lambda: [2, 11, 3]),
    ("full_like", lambda: [_(2, 3), 7.0]),
    ("unfold", lambda: [_(2, 7, 3), 1, 3, 1]),
    ("unfold", lambda: [_(2, 9, 3), -2, 2, 3]),
    ("unfold", lambda: [_(8), 0, 4, 4]),
    # Fourier transforms
    ("_fft_r2c", lambda: [_(*S), [1, 2], 0, True]),
    ("_fft_r2c", lambda: [_(*S), [0], 2, False]),
    ("_fft_c2c", lambda: [held(torch.complex(_(*S), _(*S))), [1], 1, True]),
    ("_fft_c2c", lambda: [held(torch.complex(_(*S), _(*S))), [0, 2], 2, False]),
    ("_fft_c2r", lambda: [held(torch.complex(_(*S), _(*S))), [1, 2], 2, 7]),
    ("_fft_c2r", lambda: [held(torch.complex(_(*S), _(*S))), [2], 1, 6]),
    # places between values
    ("bucketize.Tensor", lambda: [_(*S), torch.linspace(-1, 1, 5).double(), {"right": True}]),
    ("searchsorted.Tensor", lambda: [_(3, 5).sort(-1)[0].detach(), _(3, 2)]),
    # matrices
    ("linalg_cholesky_ex", lambda: [definite()]),
    ("linalg_cholesky_ex", lambda: [definite(), {"upper": True}]),
    ("cholesky_solve", lambda: [_(2, 3, 4), held(definite().tril())]),
    ("cholesky_solve", lambda: [_(2, 3, 4), held(definite().triu()), True]),
    ("linalg_solve_triangular", lambda: [definite(), _(2, 3, 4), {"upper": False}]),
    ("linalg_solve_triangular", lambda: [definite(), _(2, 4, 3), {"upper": True, "left": False}]),
    ("linalg_inv_ex", lambda: [definite()]),
    ("_linalg_solve_ex", lambda: [definite(), _(2, 3, 4)]),
    ("_linalg_solve_ex", lambda: [definite(), _(2, 3)]),
    ("_linalg_solve_ex", lambda: [definite(), _(2, 4, 3), {"left": False}]),
    ("_linalg_det", lambda: [definite()]),
    ("linalg_matrix_exp", lambda: [definite()]),
    ("linalg_pinv.atol_rtol_tensor", lambda: [_(2, 4, 3)]),
    # look-ups
    *[
        ("_embedding_bag", lambda how=how: [_(7, 3), whole(7, 6), torch.tensor([0, 2, 5]), *how])
        for how in (
            (),
            (False, 1),
            (False, 2),
            (False, 0, False, None, True),
            (False, 1, False, None, False, 3),
            (False, 2, False, None, False, 3),
        )
    ],
    ("_embedding_bag", lambda: [_(7, 3), whole(7, 4), torch.tensor([0, 2]), False, 0, False, _(4)]),
    ("embedding", lambda: [_(7, 3), whole(7, 2, 5)]),
    ("embedding", lambda: [_(7, 3), whole(3, 2, 5), 1]),
    ("index_select", lambda: [_(*S), 1, whole(3, 5)]),
    ("index.Tensor", lambda: [_(*S), [None, whole(3, 5)]]),
    ("index.Tensor", lambda: [_(*S), [whole(2, 5), None, whole(4, 5) - 4]]),
    ("index.Tensor", lambda: [_(*S), [whole(2, 5, 1), whole(3, 6)]]),
    ("index_put", lambda: [_(5, 3), [torch.tensor([0, 3])], _(2, 3)]),
    ("index_put", lambda: [_(5, 3), [torch.tensor([0, 3, 0])], _(3, 3), True]),
    ("index_put", lambda: [_(5, 3), [_(5, 3) > 0], _(1)[0]]),
    ("gather", lambda: [_(4, 5), 1, whole(5, 3, 2)]),
    ("scatter.src", lambda: [_(4, 5), 1, torch.tensor([[0, 3], [4, 1]]), _(2, 2)]),
    ("scatter.value", lambda: [_(4, 5), 0, whole(4, 1, 5), 2.0]),
    ("scatter_add", lambda: [_(4, 5), 0, whole(4, 6, 5), _(6, 5)]),
    ("scatter_reduce.two", lambda: [_(4), 0, whole(4, 9), _(9), "amax"]),
    ("scatter_reduce.two", lambda: [_(4), 0, whole(4, 9), _(9), "mean", {"include_self": False}]),
    ("topk", lambda: [_(3, 7), 3]),
    ("topk", lambda: [_(7, 3), 2, 0, False]),
    ("sort", lambda: [_(3, 7), 1, True]),
    ("sort.stable", lambda: [whole(3, 9), {"stable": True, "dim": 0, "descending": True}]),
    # products
    ("linear", lambda: [_(*S), _(5, 4), _(5)]),
    ("matmul", lambda: [_(*S), _(4, 5)]),
    ("matmul", lambda: [_(5, 1, 2, 3), _(4, 3, 2)]),
    ("matmul", lambda: [_(3), _(3)]),
    ("mm", lambda: [_(2, 3), _(3, 4)]),
    ("bmm", lambda: [_(*S), _(2, 4, 5)]),
    ("addmm", lambda: [_(4), _(2, 3), _(3, 4), {"beta": 0.5, "alpha": 2}]),
    ("einsum", lambda: ["bij,bjk->ik", [_(*S), _(2, 4, 5)]]),
    ("scaled_dot_product_attention", lambda: [_(2, 4, 5, 6), _(2, 4, 7, 6), _(2, 4, 7, 3)]),
    (
        "scaled_dot_product_attention",
        lambda: [_(2, 4, 5, 6), _(2, 4, 5, 6), _(2, 4, 5, 6), None, 0.0, True, {"scale": 0.3}],
    ),
    (
        "scaled_dot_product_attention",
        lambda: (
            [_(2, 4, 5, 6), _(2, 2, 7, 6), _(2, 2, 7, 6), _(2, 1, 5, 7) > -1, {"enable_gqa": True}]
        ),
    ),
    (
        "scaled_dot_product_attention",
        lambda: [_(2, 4, 5, 6), _(2, 4, 7, 6), _(2, 4, 7, 6), _(4, 5, 7)],
    ),
    # images
    *[
        ("convolution", lambda how=how, sizes=sizes: [*map(torch.Tensor.double, sizes), *how])
        for sizes, how in (
            ((image(), _(6, 4, 3, 2), _(6)), ([2, 1], [1, 0], [1, 2], False, [0, 0], 1)),
            ((image(), _(8, 1, 3, 3), _(8)), ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)),
            ((image(), _(4, 3, 3, 3), _(6)), ([2, 2], [1, 0], [1, 2], True, [1, 0], 2)),
            ((_(2, 3, 9), _(4, 3, 3), _(4)), ([2], [1], [1], False, [0], 1)),
            (
                (_(1, 2, 4, 5, 4), _(3, 2, 2, 2, 2), _(3)),
                ([1] * 3, [0] * 3, [1] * 3, False, [0], 1),
            ),
        )
    ],
    ("max_pool2d_with_indices", lambda: [image(), [3, 2], [2, 2], [1, 1]]),
    ("max_pool2d_with_indices", lambda: [image(), [2, 2], [2, 2], [0, 0], [1, 1], True]),
    ("max_pool2d_with_indices", lambda: [image(), [2, 3], [2, 1], [1, 1], [2, 1], True]),
    ("avg_pool2d", lambda: [image(), [3, 3], [2, 2], [1, 1]]),
    ("avg_pool2d", lambda: [image(), [3, 3], [2, 2], [1, 1], True]),
    ("avg_pool2d", lambda: [image(), [3, 3], [2, 2], [1, 1], True, False]),
    ("_adaptive_avg_pool2d", lambda: [image(), [3, 2]]),
    ("adaptive_max_pool2d", lambda: [image(), [3, 2]]),
    ("upsample_nearest2d.vec", lambda: [image(), None, [2.0, 1.5]]),
    ("upsample_bilinear2d.vec", lambda: [image(), [9, 11], True, None]),
    ("upsample_bilinear2d.vec", lambda: [image(), None, False, [1.7, 2.0]]),
    # norms
    ("native_layer_norm", lambda: [_(*S), [3, 4], _(3, 4), _(3, 4), 1e-5]),
    ("native_group_norm", lambda: [image(), _(4), _(4), 2, 4, 42, 2, 1e-5]),
    (
        "_native_batch_norm_legit_functional",
        lambda: [image(), _(4), _(4), held(_(4)), held(positive(4)), True, 0.1, 1e-5],
    ),
    (
        "_native_batch_norm_legit_no_training",
        lambda: [image(), _(4), _(4), held(_(4)), held(positive(4)), 0.1, 1e-5],
    ),
    ("_native_batch_norm_legit.no_stats", lambda: [image(), _(4), None, True, 0.1, 1e-5]),
    # what is drawn with a share of 0 or 1
    ("native_dropout", lambda: [_(*X), 0.0, True]),
    ("native_dropout", lambda: [_(*X), 1.0, True]),
]


def test_operations__every_family_is_in_the_table():
    for name in OPERATIONS:
        if name.partition(".")[0] not in ("parenvs", "prims", "transformers"):
            packet, _, overload = name.partition(".")
            if name in ("cond", "scan", "map_impl", "while_loop"):
                assert getattr(torch.ops.higher_order, packet)
                continue
            found = getattr(torch.ops.aten, packet)
            assert (overload or "default") in found.overloads(), name


def split_keywords(given):
    return (given[:-1], given[-1]) if isinstance(given[-1], dict) else (given, {})


def to_jax(value):
    if torch.is_tensor(value):
        return jax.numpy.asarray(value.detach().numpy())
    if isinstance(value, list):
        return [to_jax(x) for x in value]
    return jax.numpy.dtype("int64") if value is torch.int64 else value


def tensors(value):
    if torch.is_tensor(value):
        return [value]
    return [t for x in value for t in tensors(x)] if isinstance(value, (list, tuple)) else []


def rebuilt(value, new):
    """The arguments with their floating arrays, in order, taken from ``new``."""
    if isinstance(value, jax.Array):
        return next(new) if jax.numpy.issubdtype(value.dtype, jax.numpy.floating) else value
    return [rebuilt(x, new) for x in value] if isinstance(value, list) else value


def case(number):
    """A case's name, its arguments as tensors, and its keywords."""
    name, make = CASES[number]
    torch.manual_seed(number)
    given, keywords = split_keywords(make())
    for tensor in tensors(given):
        if tensor.is_floating_point() and not hasattr(tensor, "held"):
            tensor.requires_grad_()
    return name, given, keywords


def in_pytorch(number):
    """Results of a case, and gradients of the first one, weighted by place."""
    name, given, keywords = case(number)
    packet, _, overload = name.partition(".")
    made = reduce(getattr, (packet, overload or "default"), torch.ops.aten)(*given, **keywords)
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    trained = [t for t in tensors(given) if t.requires_grad]
    if not made[0].requires_grad:
        return made, []
    first = torch.view_as_real(made[0]) if made[0].is_complex() else made[0]
    weights = torch.linspace(-1, 1, first.numel(), dtype=torch.float64).reshape(first.shape)
    return made, torch.autograd.grad((first * weights).sum(), trained, allow_unused=True)


def in_jax(number):
    """The same by the table."""
    name, given, keywords = case(number)
    how = {key: to_jax(value) for key, value in keywords.items()}
    if name in RANDOM:
        how["key"] = Key(jax.numpy.zeros(4, jax.numpy.uint32))
    arrays = to_jax(given)
    leaves = [to_jax(t) for t in tensors(given) if t.is_floating_point()]
    trained = [
        k
        for k, t in enumerate(t for t in tensors(given) if t.is_floating_point())
        if t.requires_grad
    ]

    def compute(chosen):
        new = list(leaves)
        for k, leaf in zip(trained, chosen, strict=True):
            new[k] = leaf
        made = OPERATIONS[name](*rebuilt(arrays, iter(new)), **how)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        made = [x() if callable(x) else x for x in made]
        first = made[0]
        if jax.numpy.iscomplexobj(first):
            first = jax.numpy.stack([first.real, first.imag], -1)
        if not jax.numpy.issubdtype(first.dtype, jax.numpy.floating):
            return 0.0, made
        weights = jax.numpy.linspace(-1, 1, first.size).reshape(first.shape)
        return (first * weights).sum(), made

    gradients, made = jax.grad(compute, has_aux=True)([leaves[k] for k in trained])
    return made, gradients


GROUPS = 7
"""Cases are compiled together, which takes less time; each group has some of all kinds."""


def results_in_jax(numbers):
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    with jax.enable_x64(True):
        made = jax.jit(lambda: [in_jax(k) for k in numbers], compiler_options=quick)()
        return jax.tree.map(np.asarray, made)


@pytest.mark.thorough
@pytest.mark.parametrize("group", [0, 1, *slow(*range(2, GROUPS))])
def test_operation__values_and_gradients_are_pytorchs(group):
    numbers = range(group, len(CASES), GROUPS)
    for number, (ours, gradients) in zip(numbers, results_in_jax(numbers), strict=True):
        name, (theirs, wanted_gradients) = CASES[number][0], in_pytorch(number)
        for mine, wanted in zip(ours, theirs, strict=False):
            if mine is not None and wanted.numel():
                wanted = wanted.detach().resolve_conj().numpy()
                mine = mine.astype(wanted.dtype)
                np.testing.assert_allclose(mine, wanted, 1e-9, 1e-9, err_msg=name)
        for mine, wanted in zip(gradients, wanted_gradients, strict=False):
            wanted = np.zeros(mine.shape) if wanted is None else wanted.numpy()
            np.testing.assert_allclose(mine, wanted, 1e-8, 1e-8, err_msg=name)


class Composed(torch.nn.Module):
    """Operations that PyTorch itself writes with others, also in branches."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(4, 4, 1)
        self.turn = torch.nn.Parameter(torch.randn(2, 2, 3))

    def forward(self, x):
        x = functional.interpolate(self.layer(x), scale_factor=1.5, mode="bicubic")
        x = functional.pad(functional.pixel_shuffle(x, 2), (1, 2, 3, 0), mode="reflect")
        x = functional.softplus(x) + functional.mish(x).roll([1, -1], [2, 3]).tril()
        places = functional.affine_grid(self.turn, (2, 4, 6, 5), align_corners=False)
        x = functional.grid_sample(x, places, "bicubic", "reflection", align_corners=False)
        x = torch.cond(x.sum() > 0, functional.silu, functional.logsigmoid, (x,))
        return torch.stack([x, x.clamp_min(0.1)]).logsumexp(0).std()


@pytest.mark.slow
def test_composed_operations__compute_as_pytorch_does():
    torch.manual_seed(0)
    result = agreement(Composed(), (image(),))
    assert result.loss_error < 1e-12 and result.gradient_error < 1e-9


@pytest.mark.slow
def test_random__is_drawn_as_asked():
    key = Key(jax.numpy.zeros(4, jax.numpy.uint32))
    kept = OPERATIONS["native_dropout"](jax.numpy.ones(20000), 0.25, True, key=key)[0]
    assert abs(float((kept == 0).mean()) - 0.25) < 0.02
    np.testing.assert_allclose(kept[kept > 0], 1 / 0.75, 1e-6)
    normal = OPERATIONS["randn"]([20000], key=key)
    assert abs(float(normal.mean())) < 0.05 and abs(float(normal.std()) - 1) < 0.05
    uniform = OPERATIONS["rand"]([20000], key=key)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert not np.array_equal(uniform, OPERATIONS["rand"]([20000], key=key))
    low = OPERATIONS["randint.low"](3, 7, [1000], key=key)
    assert set(np.unique(low).tolist()) == {3, 4, 5, 6}
    assert sorted(OPERATIONS["randperm"](50, key=key).tolist()) == list(range(50))
    shares = jax.numpy.asarray([0.0, 3.0, 1.0])
    drawn = OPERATIONS["multinomial"](shares, 20000, True, key=key)
    assert abs(float((drawn == 1).mean()) - 0.75) < 0.02 and int(drawn.min()) == 1
    assert set(OPERATIONS["multinomial"](shares, 2, key=key).tolist()) == {1, 2}
