//! `validation` of `fit`, and what needs it.

use std::path::Path;

use phalanx_yaml::{Value, shown};

use super::fit_table::VALIDATION;
use super::reader::{Reader, Section, finite, text};
use super::sections::several;
use super::{Data, Located, TrainConfig, Validation};

impl Reader {
    /// What is evaluated after epochs, if anything.
    pub(super) fn validation(
        &mut self,
        fit: &Section<'_>,
        folder: &Path,
    ) -> Option<Located<Validation>> {
        let node = fit.node("validation")?;
        if text(node) == Some("test") {
            return Some(Located {
                value: Validation::Test,
                at: node.at,
            });
        }
        if !matches!(node.value, Value::Map(_)) {
            self.unexpected(fit, "validation", node);
            return None;
        }
        let section = self.section(node, "validation", VALIDATION)?;
        self.exactly_one(&section);
        let split = self.value(&section, "split", finite).map(Validation::Split);
        let csv = self
            .value(&section, "csv", |node| several(node, folder))
            .map(Validation::Csv);
        let value = split.or(csv)?;
        Some(Located { value, at: node.at })
    }

    /// What makes no sense without a validation, or with other data.
    pub(super) fn check_validation(&mut self, TrainConfig { data, fit, .. }: &TrainConfig) {
        let tests = match data {
            Data::Images(images) => images.test.is_some(),
            Data::Csv(csv) => csv.test.is_some(),
            Data::Examples(examples) => examples.test.is_some(),
        };
        let example = data.test_example();
        match &fit.validation {
            Some(Located { value, at }) if *value == Validation::Test && !tests => self.problem(
                *at,
                "`validation` is test, and data has no `test`",
                format!("add `test: {example}` to data, or write `validation: {{split: 0.1}}`"),
            ),
            Some(Located { value, at })
                if matches!(value, Validation::Csv(_)) && !matches!(data, Data::Csv(_)) =>
            {
                self.problem(
                    *at,
                    "`validation` is of csv files, and data is not",
                    "write `validation: {split: 0.1}`, or `validation: test` with a `test` in data",
                );
            }
            _ => {}
        }
        let freq = Some(fit.validation_freq).filter(|freq| freq.value > 1);
        let settings = [
            ("validation_steps", fit.validation_steps),
            ("validation_freq", freq),
        ];
        for (name, setting) in settings {
            if let (Some(Located { at, .. }), None) = (setting, &fit.validation) {
                self.problem(
                    at,
                    format!("`{name}` is set, and fit has no `validation`"),
                    "add `validation: {split: 0.1}` to fit, or remove it",
                );
            }
        }
        if let (Some(Located { value, at }), None) = (&fit.keep_best, &fit.validation)
            && value.starts_with("val_")
        {
            self.problem(
                *at,
                format!("`keep_best` is {}, and fit has no `validation`", shown(value)),
                "add `validation: {split: 0.1}` to fit, or name a log of the training such as `loss`",
            );
        }
    }
}
