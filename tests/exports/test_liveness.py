"""What is alive in the text of a compiled module, by kind."""

from parenvs.exports.compilation import alive_at_peak

BODY = """
%body (state: (s32[], f32[100])) -> (s32[], f32[100]) {
  %state = (s32[], f32[100]{0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %inner = f32[100]{0} get-tuple-element(%state), index=1
  %transpose_copy_fusion = f32[500]{0} fusion(%inner), kind=kLoop, calls=%fused
  %more = f32[100]{0} fusion(%transpose_copy_fusion), kind=kLoop, calls=%fused.1
  ROOT %tuple.1 = (s32[], f32[100]{0}) tuple(%count, %more)
}
"""
ENTRY = """
ENTRY %main.1_spmd (x: f32[100], w: bf16[100,100]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  %w = bf16[100,100]{1,0} parameter(1)
  %wrapped_broadcast.2 = f32[100,100]{1,0} fusion(%x), kind=kLoop, calls=%wide
  %product = f32[100]{0} custom-call(%w, /*index=1*/%wrapped_broadcast.2), custom_call_target="dot"
  %mask = pred[100]{0} fusion(%product), kind=kLoop, calls=%masked
  %zero = s32[] constant(0)
  %tuple = (s32[], f32[100]{0}) tuple(%zero, %product)
  %while = (s32[], f32[100]{0}) while(%tuple), condition=%less, body=%body
  %made = f32[100]{0} get-tuple-element(%while), index=1
  ROOT %select_fusion = f32[100]{0} fusion(%mask, %made), kind=kLoop, calls=%picked
}
"""
HEAD = (
    "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[100]{0})->f32[100]{0}}\n"
)


def test_alive__broadcasts_and_copies_at_the_peak():
    """The product with a broadcast of 40,000 bytes is the peak."""
    found = alive_at_peak(HEAD + BODY + ENTRY)
    assert found == {"broadcast": 40_000.0, "other": 400.0}


def test_alive__a_loop_adds_its_own_peak():
    """Inside of the loop 2,000 bytes of a copy and 400 of a result lie beside product and mask.

    The mask of 100 bytes is made early: it is read at the end only.
    """
    small = ENTRY.replace("f32[100,100]{1,0} fusion", "f32[10]{0} fusion")
    found = alive_at_peak(HEAD + BODY + small)
    assert found == {"copy": 2_000.0, "other": 400.0 + 400.0, "early": 100.0}
