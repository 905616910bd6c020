"""Recordings for Whisper: read sentences joined, and sentences of WikiText-2 that espeak-ng says, with their words."""

import re
import subprocess
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from experiments.real_models import PARTS, SPEECH, TEXTS

RATE = 16_000  # samples per second
GAP = 4_800  # samples between sentences
LONGEST = 29  # seconds
WANTED = 60  # sentences of each part, or a few more
PLAIN = r"[A-Z][A-Za-z ,']*\."  # no digits or abbreviations, which can be read aloud in several ways


@click.command()
@click.argument("read", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(read: Path) -> None:
    """Write _build/speech.  READ holds NAME.wav (16 kHz) and NAME.txt, a sentence each.

    Such as test/data/librivox in the source archive of pocketsphinx 5.1.1.  espeak-ng and sox must be installed.
    """
    recordings = sorted(read.glob("*.wav"))
    texts = [recording.with_suffix(".txt").read_text("utf-8").strip() for recording in recordings]
    write("real", [sound_of(recording) for recording in recordings], texts)
    for part in PARTS:
        chosen, sounds, length = [], [], 0
        for sentence in sentences((TEXTS / f"{part}.txt").read_text("utf-8")):
            sound = spoken(sentence)
            length += len(sound) + GAP
            if length > LONGEST * RATE:
                break
            chosen.append(sentence)
            sounds.append(sound)
        write(f"synthetic-{part}-1", sounds, chosen)


def sentences(text: str) -> Iterator[str]:
    """Plain sentences of 6 to 13 tokens, spread over a part of WikiText-2, without its spaces before points."""
    found = (s.strip() for s in re.split(r"(?<= [.]) ", text.replace("\n", " ")))
    found = [s for s in found if re.fullmatch(PLAIN, s.replace(" .", ".")) and 6 <= len(s.split()) <= 13]
    for sentence in found[:: len(found) // WANTED]:
        yield sentence.replace(" .", ".").replace(" ,", ",").replace(" '", "'")


def spoken(sentence: str) -> np.ndarray:
    """Samples of a sentence as espeak-ng says it."""
    with tempfile.TemporaryDirectory() as folder:
        said, resampled = Path(folder, "said.wav"), Path(folder, "resampled.wav")
        subprocess.run(["espeak-ng", "-v", "en", "-w", said, sentence], check=True)
        subprocess.run(["sox", said, "-r", str(RATE), "-b", "16", "-c", "1", resampled], check=True)
        return sound_of(resampled)


def sound_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def write(name: str, sounds: list[np.ndarray], texts: list[str]) -> None:
    SPEECH.mkdir(parents=True, exist_ok=True)
    silence = np.zeros(GAP, np.int16)
    with wave.open(str(SPEECH / f"{name}.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(b"".join(part.tobytes() for sound in sounds for part in (sound, silence)))
    (SPEECH / f"{name}.txt").write_text("\n".join(texts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
