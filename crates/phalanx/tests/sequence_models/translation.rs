//! Translators.

use phalanx::models::{BeamSearch, TransformerNmt, Translator};
use phalanx::prelude::*;

use crate::{engine, tagger, tokens_loss, trainer, words};

/// A translator of few words, first values only.
pub(crate) fn nmt() -> TransformerNmt {
    TransformerNmt {
        source_vocabulary: 8,
        target_vocabulary: 7,
        source_length: 4,
        target_length: 5,
        layers: 1,
        width: 8,
        heads: 2,
        feed_forward: 16,
        dropout: 0.0,
        ..TransformerNmt::default()
    }
}

#[test]
fn translations_are_those_of_the_model() {
    let mut trainer = trainer(nmt(), tokens_loss());
    let saved = trainer.saved_model().unwrap();
    let sources = words(&[4, 2, 3], 4, 8, 3);
    let translator = |beams: usize, sentences: usize| {
        let search = BeamSearch::new(1, 2, 4).beams(beams);
        Translator::new(engine(), &saved, search, sentences).unwrap()
    };
    // Step by step with the model as it predicts.
    let mut greedy = Vec::new();
    for row in 0..3 {
        let source = sources.slice_rows(row, row + 1);
        let (mut prefix, mut total) = (vec![1], 0.0);
        for step in 0..4 {
            let mut padded = prefix.clone();
            padded.resize(5, 0);
            let target = HostTensor::new([1, 5], &padded);
            let logits = trainer.predict_on_batch(&[source.clone(), target]).unwrap()[0].f32s();
            let logits = &logits[step * 7..][..7];
            let best = (1..7)
                .rev()
                .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
                .unwrap();
            let sum: f32 = logits.iter().map(|x| x.exp()).sum();
            total += f64::from(logits[best] - sum.ln());
            if best == 2 {
                break;
            }
            prefix.push(best as i32);
        }
        greedy.push((prefix[1..].to_vec(), total));
    }
    let found = translator(1, 2).hypotheses(&sources).unwrap();
    for (found, (tokens, total)) in found.iter().zip(&greedy) {
        assert_eq!(found[0].tokens, *tokens);
        assert!((found[0].log_probability - total).abs() < 1e-4);
    }
    // However sentences are cut into batches, and from a file.
    let wide = translator(3, 3).hypotheses(&sources).unwrap();
    let narrow = translator(3, 2).hypotheses(&sources).unwrap();
    for (wide, narrow) in wide.iter().zip(&narrow) {
        assert_eq!(wide[0].tokens, narrow[0].tokens);
        assert!(wide.is_sorted_by(|a, b| a.score >= b.score));
    }
}

#[test]
fn what_cannot_translate_is_refused() {
    let model = nmt().build().unwrap();
    let values = model.init(0).unwrap();
    let saved = SavedModel::new(model, values).unwrap();
    let refused = |saved: &SavedModel, search: BeamSearch| {
        Translator::new(engine(), saved, search, 1)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&saved, BeamSearch::new(1, 2, 6)),
        "beam search: `max_length` is 6, but targets of the model have 5 tokens; lower it"
    );
    let model = tagger(true).build().unwrap();
    let values = model.init(0).unwrap();
    let tagger = SavedModel::new(model, values).unwrap();
    let message = refused(&tagger, BeamSearch::new(1, 2, 4));
    assert!(
        message.starts_with("model `sequential` cannot translate: expected inputs"),
        "{message}"
    );
    let search = BeamSearch::new(1, 2, 4);
    let translator = Translator::new(engine(), &saved, search, 1).unwrap();
    let message = translator
        .translate(&words(&[2], 3, 8, 1))
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        "sources must be rows of 4 tokens, got i32[1,3]; pad or cut them"
    );
    let vocabulary = nmt().source_vocabulary as i32;
    for token in [-1, vocabulary] {
        let message = translator
            .translate(&HostTensor::new([1, 4], &[3, token, 0, 0]))
            .unwrap_err()
            .to_string();
        let expected = format!(
            "sources must be tokens from 0 to {}, got {token} in row 0 at place 1",
            vocabulary - 1
        );
        assert!(message.starts_with(&expected), "{message}");
    }
    for (start, end, name) in [(-5, 2, "start"), (7, 2, "start"), (1, 99, "end")] {
        let message = refused(&saved, BeamSearch::new(start, end, 4));
        let expected =
            format!("beam search: `{name}` must be a token of the target vocabulary, from 1 to 6");
        assert!(message.starts_with(&expected), "{message}");
    }
}
