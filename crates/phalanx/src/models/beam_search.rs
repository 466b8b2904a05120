//! Beam search for the most likely sequence, independent of the model that scores it.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The settings of a beam search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeamSearch {
    /// The token before the first one of a translation.
    pub start: i32,
    /// The token after the last one.
    pub end: i32,
    /// Number of hypotheses kept per sentence; 1, the default, is greedy search.
    pub beams: usize,
    /// Tokens of a translation at most, the end among them: up to the target's length of the model.
    pub max_length: usize,
    /// The length penalty: scores are divided by `((5 + length) / 6)^alpha` (Wu et al. 2016, 7);
    /// 0 for not at all, 0.6 by default.
    pub alpha: f64,
}

/// A translation.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Its tokens, without start and end.
    pub tokens: Vec<i32>,
    /// The sum of the logarithms of the tokens' probabilities, the end's among them.
    pub log_probability: f64,
    /// The logarithm divided by the penalty of the length: what hypotheses are ranked by.
    pub score: f64,
    /// Whether the end was reached, not the greatest length.
    pub finished: bool,
}

impl BeamSearch {
    /// Greedy search of translations of at most `max_length` tokens.
    #[must_use]
    pub const fn new(start: i32, end: i32, max_length: usize) -> Self {
        Self {
            start,
            end,
            beams: 1,
            max_length,
            alpha: 0.6,
        }
    }

    /// Sets how many hypotheses are kept of each sentence.
    #[must_use]
    pub const fn beams(mut self, beams: usize) -> Self {
        self.beams = beams;
        self
    }

    /// Sets how much long translations are favoured.
    #[must_use]
    pub const fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: &str, got: &dyn std::fmt::Display| {
            Err(Error::user(format!("beam search: {what}, got {got}")))
        };
        if self.beams == 0 {
            return wrong("`beams` must be at least 1", &self.beams);
        }
        if self.max_length == 0 {
            return wrong("`max_length` must be at least 1", &self.max_length);
        }
        if !(self.alpha.is_finite() && self.alpha >= 0.0) {
            return wrong("`alpha` must be a number of at least 0", &self.alpha);
        }
        if self.start == 0 || self.end == 0 || self.start == self.end {
            let tokens = format!("{} and {}", self.start, self.end);
            let what = "`start` and `end` must be two tokens other than 0, which is padding";
            return wrong(what, &tokens);
        }
        Ok(())
    }

    /// The `wanted` best hypotheses of each of `sentences`, of as many as there are beams at most, the best first; the search ends as soon as
    /// no other can be among them.
    ///
    /// `next` gets `beams` prefixes of each sentence, start tokens and all, and gives the log probabilities of each
    /// token behind each of them. A hypothesis that ends frees no place for another (Sutskever et al. 2014): with one
    /// beam this is greedy search. Of equal scores the earlier hypothesis and the lower token win, so that results
    /// repeat.
    pub(super) fn run(
        &self,
        sentences: usize,
        wanted: usize,
        mut next: impl FnMut(&[Vec<i32>]) -> Result<Vec<Vec<f32>>>,
    ) -> Result<Vec<Vec<Hypothesis>>> {
        let mut searches: Vec<SentenceSearch> =
            (0..sentences).map(|_| SentenceSearch::new(self)).collect();
        for _ in 0..self.max_length {
            if searches.iter().all(|search| search.is_over(self, wanted)) {
                break;
            }
            let rows: Vec<Vec<i32>> = searches.iter().flat_map(|s| s.rows(self)).collect();
            let scores = next(&rows)?;
            let is_nan = |row: &Vec<f32>| row.iter().any(|score| score.is_nan());
            if let Some(row) = scores.iter().position(is_nan) {
                return Err(not_numbers(row / self.beams, &rows[row]));
            }
            for (search, scores) in searches.iter_mut().zip(scores.chunks(self.beams)) {
                if !search.is_over(self, wanted) {
                    search.grow(self, scores);
                }
            }
        }
        let searches = searches.into_iter();
        Ok(searches.map(|s| s.ranked(self, wanted)).collect())
    }

    /// What a log probability is divided by.
    fn penalty(&self, length: usize) -> f64 {
        ((5.0 + length as f64) / 6.0).powf(self.alpha)
    }

    fn hypothesis(&self, prefix: &Prefix, finished: bool) -> Hypothesis {
        let length = prefix.tokens.len() - 1;
        let inner = 1..prefix.tokens.len() - usize::from(finished);
        Hypothesis {
            tokens: prefix.tokens[inner].to_vec(),
            log_probability: prefix.log_probability,
            score: prefix.log_probability / self.penalty(length),
            finished,
        }
    }
}

fn not_numbers(sentence: usize, prefix: &[i32]) -> Error {
    let place = prefix.len() - 1;
    Error::user(format!(
        "beam search: the model's scores of token {place} of sentence {sentence} of a batch are not numbers (NaN); its values are not finite, as after a training that diverged, or a token is outside the table of an embedding: check both"
    ))
}

/// The beginning of a translation, with the start token.
#[derive(Clone)]
struct Prefix {
    tokens: Vec<i32>,
    log_probability: f64,
}

/// The search for one sentence.
struct SentenceSearch {
    live: Vec<Prefix>,
    done: Vec<Hypothesis>,
}

impl SentenceSearch {
    fn new(settings: &BeamSearch) -> Self {
        let start = Prefix {
            tokens: vec![settings.start],
            log_probability: 0.0,
        };
        Self {
            live: vec![start],
            done: Vec::new(),
        }
    }

    /// Whether no live hypothesis can get better than the last of the `wanted` best that are done: log probabilities only fall.
    fn is_over(&self, settings: &BeamSearch, wanted: usize) -> bool {
        let mut done: Vec<f64> = self.done.iter().map(|done| done.score).collect();
        done.sort_by(|a, b| b.total_cmp(a));
        let last = wanted.checked_sub(1).and_then(|last| done.get(last));
        let last = last.copied().unwrap_or(f64::NEG_INFINITY);
        let longest = settings.penalty(settings.max_length);
        let reachable = |prefix: &Prefix| prefix.log_probability / longest;
        self.live.iter().all(|prefix| reachable(prefix) <= last)
    }

    /// One row per beam: the live prefixes, then rows that only fill the batch.
    fn rows(&self, settings: &BeamSearch) -> Vec<Vec<i32>> {
        let live = self.live.iter().map(|prefix| prefix.tokens.clone());
        let idle = std::iter::repeat_with(|| vec![settings.start]);
        live.chain(idle).take(settings.beams).collect()
    }

    /// Extends the live prefixes by their most likely next tokens.
    fn grow(&mut self, settings: &BeamSearch, scores: &[Vec<f32>]) {
        let mut candidates: Vec<(f64, usize, usize)> = Vec::new();
        for (beam, (prefix, scores)) in self.live.iter().zip(scores).enumerate() {
            let scores = scores.iter().enumerate();
            // Padding is no token.
            candidates.extend(
                scores.skip(1).map(|(token, &score)| {
                    (prefix.log_probability + f64::from(score), beam, token)
                }),
            );
        }
        candidates.retain(|(score, ..)| *score > f64::NEG_INFINITY);
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        candidates.truncate(settings.beams - self.done.len());
        let mut live = Vec::new();
        for (log_probability, beam, token) in candidates {
            let mut tokens = self.live[beam].tokens.clone();
            let token = i32::try_from(token).unwrap_or(i32::MAX);
            tokens.push(token);
            let prefix = Prefix {
                tokens,
                log_probability,
            };
            if token == settings.end {
                self.done.push(settings.hypothesis(&prefix, true));
            } else {
                live.push(prefix);
            }
        }
        self.live = live;
    }

    /// Those that are not done are as long as they may be, or worse than the `wanted` best.
    fn ranked(self, settings: &BeamSearch, wanted: usize) -> Vec<Hypothesis> {
        let unfinished = self.live.iter().map(|p| settings.hypothesis(p, false));
        let mut all: Vec<Hypothesis> = self.done.iter().cloned().chain(unfinished).collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all.truncate(wanted);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: usize = 4;
    const END: i32 = 2;

    /// Log probabilities that depend on the whole prefix and the sentence.
    fn scores(sentence: usize, prefix: &[i32]) -> Vec<f32> {
        let hash = prefix.iter().fold(sentence as u64 + 7, |hash, &token| {
            (hash * 31 + token.unsigned_abs() as u64 + 1).wrapping_mul(0x9E37_79B9) % 10_007
        });
        let raw: Vec<f64> = (0..VOCABULARY as u64)
            .map(|token| ((hash * (token + 3) * 7) % 97) as f64 / 20.0)
            .collect();
        let total: f64 = raw.iter().map(|x| x.exp()).sum();
        raw.iter().map(|x| (x - total.ln()) as f32).collect()
    }

    fn search(settings: &BeamSearch, sentences: usize) -> Vec<Vec<Hypothesis>> {
        settings.check().unwrap();
        let next = |rows: &[Vec<i32>]| {
            let rows = rows.iter().enumerate();
            Ok(rows
                .map(|(i, row)| scores(i / settings.beams, row))
                .collect())
        };
        settings.run(sentences, settings.beams, next).unwrap()
    }

    /// Every translation, the best first.
    fn all(settings: &BeamSearch, sentence: usize) -> Vec<Hypothesis> {
        let mut open = vec![Prefix {
            tokens: vec![settings.start],
            log_probability: 0.0,
        }];
        let mut done = Vec::new();
        for step in 0..settings.max_length {
            for prefix in std::mem::take(&mut open) {
                for (token, score) in scores(sentence, &prefix.tokens)
                    .into_iter()
                    .enumerate()
                    .skip(1)
                {
                    let mut longer = prefix.clone();
                    longer.tokens.push(token as i32);
                    longer.log_probability += f64::from(score);
                    let ended = token as i32 == END;
                    if ended || step + 1 == settings.max_length {
                        done.push(settings.hypothesis(&longer, ended));
                    } else {
                        open.push(longer);
                    }
                }
            }
        }
        done.sort_by(|a, b| b.score.total_cmp(&a.score));
        done
    }

    #[test]
    fn a_wide_beam_finds_the_best_of_all() {
        for alpha in [0.0, 0.6, 1.0] {
            // 3 + 2 * 3 + 4 * 3 + 8 * 3 prefixes at most.
            let settings = BeamSearch::new(1, END, 4).beams(45).alpha(alpha);
            for (sentence, found) in search(&settings, 6).into_iter().enumerate() {
                let expected = &all(&settings, sentence)[0];
                assert_eq!(found[0].tokens, expected.tokens, "{alpha} {sentence}");
                assert_eq!(found[0].finished, expected.finished);
                assert!((found[0].score - expected.score).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn one_beam_is_greedy() {
        let settings = BeamSearch::new(1, END, 6);
        for (sentence, found) in search(&settings, 8).into_iter().enumerate() {
            let mut prefix = vec![1];
            let mut ended = false;
            while !ended && prefix.len() <= settings.max_length {
                let scores = scores(sentence, &prefix);
                // The first of equals.
                let tokens = (1..VOCABULARY).rev();
                let best = tokens
                    .max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
                    .unwrap();
                ended = best as i32 == END;
                prefix.extend((!ended).then_some(best as i32));
            }
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].tokens, prefix[1..]);
            assert_eq!(found[0].finished, ended);
        }
    }

    /// The first sentence that ends is far better than the second, which goes on nevertheless where both are wanted.
    #[test]
    fn sentences_are_not_cut_off_before_the_greatest_length() {
        let settings = BeamSearch::new(1, END, 10).beams(2).alpha(0.0);
        let found = |wanted: usize| {
            let mut steps = 0;
            let next = |rows: &[Vec<i32>]| {
                steps += 1;
                let of = |row: &Vec<i32>| match row.len() {
                    1 => [0.0, 0.0, 0.99f32, 0.01].map(f32::ln).to_vec(),
                    2..=4 => [0.0, 0.0, 0.0, 1.0f32].map(f32::ln).to_vec(),
                    _ => [0.0, 0.0, 1.0, 0.0f32].map(f32::ln).to_vec(),
                };
                Ok(rows.iter().map(of).collect())
            };
            let found = settings.run(1, wanted, next).unwrap().remove(0);
            let found = found
                .into_iter()
                .map(|found| (found.tokens, found.finished));
            (found.collect::<Vec<_>>(), steps)
        };
        let (best, other) = ((vec![], true), (vec![3; 4], true));
        assert_eq!(found(2), (vec![best.clone(), other], 5));
        assert_eq!(found(1), (vec![best], 1));
    }

    #[test]
    fn the_best_alone_is_the_first_of_all() {
        for alpha in [0.0, 0.6, 1.0] {
            let settings = BeamSearch::new(1, END, 6).beams(3).alpha(alpha);
            let next = |rows: &[Vec<i32>]| {
                let rows = rows.iter().enumerate();
                Ok(rows.map(|(i, row)| scores(i / 3, row)).collect())
            };
            let best = settings.run(20, 1, next).unwrap();
            for (best, all) in best.iter().zip(search(&settings, 20)) {
                assert_eq!(best[..], all[..1], "{alpha}");
                assert!(all.iter().all(|one| one.finished || one.tokens.len() == 6));
            }
        }
    }

    #[test]
    fn scores_that_are_not_numbers_are_an_error() {
        let settings = BeamSearch::new(1, END, 6);
        let next = |rows: &[Vec<i32>]| Ok(vec![vec![f32::NAN; VOCABULARY]; rows.len()]);
        let message = settings.run(1, 1, next).unwrap_err().to_string();
        assert!(message.contains("token 0 of sentence 0"), "{message}");
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let message = |settings: BeamSearch| settings.check().unwrap_err().to_string();
        let good = BeamSearch::new(1, 2, 5);
        assert_eq!(
            message(good.clone().beams(0)),
            "beam search: `beams` must be at least 1, got 0"
        );
        assert_eq!(
            message(good.alpha(f64::NAN)),
            "beam search: `alpha` must be a number of at least 0, got NaN"
        );
        assert_eq!(
            message(BeamSearch::new(1, 1, 5)),
            "beam search: `start` and `end` must be two tokens other than 0, which is padding, got 1 and 1"
        );
    }
}
