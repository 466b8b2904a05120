//! A CSV file of made-up reviews, for examples: `phalanx data reviews`.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::files::create;
use crate::synth::Random;

/// How often a clause says the opposite of the whole review: the rest is what a model can find.
const AGAINST: f32 = 0.15;
/// How often a clause says it by the opposite word and a `not`.
const NEGATED: f32 = 0.3;

const THINGS: [&str; 12] = [
    "plot",
    "acting",
    "music",
    "ending",
    "dialogue",
    "camera work",
    "cast",
    "pace",
    "script",
    "soundtrack",
    "humour",
    "first half",
];
const VERBS: [&str; 5] = ["was", "is", "felt", "seemed", "turned out"];
const DEGREES: [&str; 6] = ["", "really ", "quite ", "rather ", "simply ", "so "];
const GOOD: [&str; 14] = [
    "great",
    "wonderful",
    "funny",
    "gripping",
    "brilliant",
    "charming",
    "moving",
    "clever",
    "fresh",
    "superb",
    "touching",
    "delightful",
    "strong",
    "memorable",
];
const BAD: [&str; 14] = [
    "dull",
    "awful",
    "boring",
    "clumsy",
    "weak",
    "terrible",
    "shallow",
    "predictable",
    "stale",
    "tedious",
    "wooden",
    "annoying",
    "messy",
    "forgettable",
];
const ASIDES: [&str; 8] = [
    "I saw it on a Tuesday",
    "we went with the kids",
    "it runs for 127 minutes",
    "a friend called it \"a must\"",
    "the cinema was half empty",
    "popcorn, cola, the usual",
    "it's by the makers of \"Nine Lives\"",
    "I'd read the book before",
];
const ENDS: [&str; 5] = [". ", "! ", "; ", ", and ", "...\n"];

/// The options of the command.
#[derive(Debug, Args)]
pub struct Reviews {
    /// The file
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Number of rows
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// What the reviews follow from
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
}

/// What was written.
impl Display for Reviews {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} reviews in {}", self.count, self.to.display())
    }
}

impl Reviews {
    /// Writes rows of `review,sentiment`, every other one positive; the folder of the file is made.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let file = create(&self.to, self.overwrite)?;
        self.write_rows(file).map_err(|error| {
            let message = format!("cannot write {}: {error}", self.to.display());
            Failure::new(Exit::Failed, message).next("choose another --to")
        })
    }

    fn write_rows(&self, file: File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        let mut random = Random(self.seed);
        writeln!(file, "review,sentiment")?;
        for row in 0..self.count {
            let is_good = row % 2 == 0;
            let review = review(is_good, &mut random).replace('"', "\"\"");
            let sentiment = if is_good { "positive" } else { "negative" };
            writeln!(file, "\"{review}\",{sentiment}")?;
        }
        file.flush()
    }
}

/// Three to seven clauses about things, and what has nothing to do with them.
fn review(is_good: bool, random: &mut Random) -> String {
    let mut text = String::new();
    for clause in 0..3 + pick(5, random) {
        if clause > 0 {
            text += one(&ENDS, random);
        }
        if random.unit() < 0.25 {
            text += one(&ASIDES, random);
            text += one(&ENDS, random);
        }
        let says_good = is_good != (random.unit() < AGAINST);
        let is_negated = random.unit() < NEGATED;
        let words = if says_good == is_negated { &BAD } else { &GOOD };
        let not = if is_negated { "not " } else { "" };
        let (thing, verb) = (one(&THINGS, random), one(&VERBS, random));
        let (degree, word) = (one(&DEGREES, random), one(words, random));
        text += &format!("the {thing} {verb} {not}{degree}{word}");
    }
    text[..1].make_ascii_uppercase();
    text + "."
}

fn one<'w>(words: &[&'w str], random: &mut Random) -> &'w str {
    words[pick(words.len(), random)]
}

/// A number below `end`.
fn pick(end: usize, random: &mut Random) -> usize {
    ((random.unit() * end as f32) as usize).min(end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_follow_from_the_seed_and_say_what_they_are() {
        let write = |seed| {
            let mut random = Random(seed);
            let made = (0..400).map(|row| review(row % 2 == 0, &mut random));
            made.collect::<Vec<String>>()
        };
        let reviews = write(7);
        assert_eq!(reviews, write(7));
        assert_ne!(reviews, write(8));
        // Clauses that agree with the whole, by a word or by `not` and the opposite word.
        let (mut agree, mut clauses) = (0, 0);
        for (row, review) in reviews.iter().enumerate() {
            let words: Vec<&str> = review.split_whitespace().collect();
            for clause in review
                .to_lowercase()
                .split("the ")
                .filter(|clause| !clause.is_empty())
            {
                let has = |words: &[&str]| words.iter().any(|word| clause.contains(word));
                let (is_good, is_bad) = (has(&GOOD), has(&BAD));
                if is_good != is_bad {
                    clauses += 1;
                    let says_good = is_good != clause.contains("not ");
                    agree += usize::from(says_good == (row % 2 == 0));
                }
            }
            assert!(words.len() >= 12, "{review}");
        }
        let share = f64::from(u32::try_from(agree * 1000 / clauses).unwrap()) / 1000.0;
        assert!((0.8..0.9).contains(&share), "{share} of {clauses}");
    }
}
