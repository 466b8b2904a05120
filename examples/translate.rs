//! Learns to translate a made-up language: digits are spelled backwards with other digits, `1 7 3` as `c h b`.
//!
//! `cargo run --release --example translate`. Every sentence of the test should come out right after half a minute. With
//! `PHALANX_EXAMPLE_STEPS` set it stops after so many steps of one epoch.

use phalanx::models::{BeamSearch, TransformerNmt, Translator};
use phalanx::prelude::*;
use phalanx::schedules::NoamDecay;

const EPOCHS: usize = 8;
const LENGTH: usize = 8;
/// Tokens: 0 is padding, 1 starts and 2 ends a translation; words come after.
const START: i32 = 1;
const END: i32 = 2;
const FIRST_WORD: i32 = 3;

fn main() -> phalanx::Result<()> {
    let sentences: Vec<Vec<i32>> = (0..4200).map(sentence).collect();
    let (train, test) = sentences.split_at(4096);
    let batches = pairs(train)?.shuffle(7).batch(64);

    let settings = TransformerNmt {
        source_vocabulary: 13,
        target_vocabulary: 13,
        source_length: LENGTH,
        target_length: LENGTH + 1,
        layers: 1,
        width: 64,
        heads: 4,
        feed_forward: 128,
        dropout: 0.0,
        ..TransformerNmt::default()
    };
    let strategy = OneDeviceStrategy::new()?;
    let mut trainer = strategy.compile(
        settings,
        Compile {
            optimizer: Adam::new(NoamDecay::new(64, 200).factor(0.5)).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            metrics: vec![Accuracy.into()],
            ..Compile::default()
        },
    )?;
    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let fit = match few.and_then(|steps| steps.parse().ok()) {
        Some(steps) => Fit::epochs(1).steps_per_epoch(batches.len().unwrap_or(1).min(steps)),
        None => Fit::epochs(EPOCHS),
    };
    trainer.fit(&batches, fit)?;

    let model = trainer.saved_model()?;
    for beams in [1, 4] {
        let search = BeamSearch::new(START, END, LENGTH + 1).beams(beams);
        let translator = Translator::new(trainer.engine(), &model, search, 16)?;
        let translations = translator.translate(&rows(test, LENGTH, false))?;
        let right = test.iter().zip(&translations);
        let right = right.filter(|(source, got)| translated(source) == **got);
        let (right, all) = (right.count(), test.len());
        println!("beams {beams}: {right} of {all} sentences are right");
        for (source, got) in test.iter().zip(&translations).take(3) {
            println!("  {} -> {}", spelled(source, b'0'), spelled(got, b'a'));
        }
    }
    Ok(())
}

/// 2 to `LENGTH` words, as if at random.
fn sentence(number: u64) -> Vec<i32> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let length = 2 + draw(LENGTH as u64 - 1);
    (0..length).map(|_| FIRST_WORD + draw(10) as i32).collect()
}

/// Backwards, each word the one 3 times it and 1.
fn translated(source: &[i32]) -> Vec<i32> {
    let word = |&word: &i32| FIRST_WORD + ((word - FIRST_WORD) * 3 + 1) % 10;
    source.iter().rev().map(word).collect()
}

/// Sources and targets behind a start token, and the targets before an end token as labels.
fn pairs(sources: &[Vec<i32>]) -> phalanx::Result<Dataset> {
    let targets: Vec<Vec<i32>> = sources.iter().map(|source| translated(source)).collect();
    let started = targets
        .iter()
        .map(|target| [&[START], &target[..]].concat());
    let started: Vec<Vec<i32>> = started.collect();
    let source = rows(sources, LENGTH, false);
    let target = rows(&started, LENGTH + 1, false);
    let labels = rows(&targets, LENGTH + 1, true);
    Dataset::from_arrays([source, target], labels)
}

/// Sentences padded to one length, with an end token or without.
fn rows(sentences: &[Vec<i32>], length: usize, ended: bool) -> HostTensor {
    let mut tokens = vec![0; sentences.len() * length];
    for (row, sentence) in tokens.chunks_mut(length).zip(sentences) {
        row[..sentence.len()].copy_from_slice(sentence);
        if ended {
            row[sentence.len()] = END;
        }
    }
    HostTensor::new([sentences.len(), length], &tokens)
}

fn spelled(words: &[i32], first: u8) -> String {
    let letter = |&word: &i32| char::from(first.wrapping_add((word - FIRST_WORD) as u8));
    words.iter().map(letter).collect()
}
