"""What a rank skips that others go through, one kind of training each. `EVERY` has them by what the page calls them."""

from paths import families as f
from paths.kind import Kind, adapted, frozen, joint_frozen, recomputed, text_frozen
from paths.skipping import BART, LEAVING, ROUTED

TEXT_UNITS = (f.LLAVA.units[1],)

FAMILIES = {
    "Qwen2.5-VL": Kind(f.QWEN2_5_VL),
    "Qwen3-VL": Kind(f.QWEN3_VL),
    "InternVL": Kind(f.INTERNVL),
    "Gemma3": Kind(f.GEMMA3),
    "LLaVA": Kind(f.LLAVA),
    "LLaVA, blocks of the tower as large as those of the text": Kind(f.ALIKE),
    "Qwen2-Audio, recordings": Kind(f.QWEN2_AUDIO),
    "Voxtral, recordings": Kind(f.VOXTRAL),
}
PLACES = {
    "images on all of 4 ranks": Kind(f.QWEN2_5_VL, ((1,), (2,), (1,), (3,))),
    "images on 2 of 4 ranks": Kind(f.QWEN2_5_VL, ((2,), (0,), (0,), (1,))),
    "five images on one of 4 ranks": Kind(f.QWEN2_5_VL, ((0,), (0,), (5,), (0,))),
    "no image on any rank": Kind(f.QWEN2_5_VL, ((0,), (0,))),
    "an image in the first of two microbatches, in the second on the other rank": Kind(f.QWEN2_5_VL, ((1, 0), (0, 1))),
    "three microbatches of images, one of text": Kind(f.QWEN2_5_VL, ((1, 1, 2), (0,))),
}
TRAINED = {
    "Qwen2.5-VL, tower frozen": Kind(f.QWEN2_5_VL, changed=frozen),
    "LLaVA, tower trained, text frozen": Kind(f.LLAVA, changed=text_frozen),
    "Qwen2.5-VL, LoRA on the tower and the text": Kind(f.QWEN2_5_VL, changed=adapted),
    "Qwen2.5-VL, blocks recomputed": Kind(f.QWEN2_5_VL, changed=recomputed),
    "LLaVA, tower and projector frozen, in the root unit": Kind(f.LLAVA, changed=joint_frozen, units=TEXT_UNITS),
    "LLaVA, tower frozen, projector trained, both in the root unit": Kind(f.LLAVA, changed=frozen, units=TEXT_UNITS),
    "LLaVA, tower trained, in the root unit": Kind(f.LLAVA, units=TEXT_UNITS),
    "LLaVA, tower trained, in the root unit, `set_reduce_scatter_unused_params(True)`": Kind(
        f.LLAVA, units=TEXT_UNITS, told=True
    ),
    "LLaVA, tower trained, in units, `set_reduce_scatter_unused_params(True)`": Kind(f.LLAVA, told=True),
}
SKIPPED = {
    "BART, half of the encoder's layers dropped at random": Kind(BART, ((0, 0), (0, 0))),
    "texts that leave after 1 and 4 layers": Kind(LEAVING, ((1,), (4,))),
    "eight experts, two of them for each of 2 ranks": Kind(ROUTED, ((0,), (4,))),
    "eight experts, two of them for each of 4 ranks": Kind(ROUTED, ((0,), (1,), (4,), (7,))),
}
EVALUATED = {
    "LLaVA, an image first on one rank, last on the other": Kind(f.LLAVA, ((1, 0), (0, 1)), evaluates=True),
    "the same, blocks of the tower as large as those of the text": Kind(f.ALIKE, ((1, 0), (0, 1)), evaluates=True),
}
IMAGES, TURNS = "images of each rank's microbatches", "what each rank's microbatches go through"
ROOMS = {
    ("Models", IMAGES): FAMILIES,
    ("Qwen2.5-VL: where images are", IMAGES): PLACES,
    ("What is trained, and what is a unit", IMAGES): TRAINED,
    ("What skips without an image", TURNS): SKIPPED,
    ("Evaluation", IMAGES): EVALUATED,
}
EVERY: dict[str, Kind] = {name: kind for kinds in ROOMS.values() for name, kind in kinds.items()}
