//! All components that training files name: what the reference page, the JSON Schema and tests are made of.

use crate::config::{Description, Family};
use crate::fit::callbacks;
use crate::{losses, metrics, models, nn, optim, schedules, strategy};

/// The components of a family, with their settings and defaults.
#[must_use]
pub fn components(family: Family) -> Vec<Description> {
    match family {
        Family::Layer => {
            let mut layers = nn::Registry::standard().descriptions();
            layers.extend(models::descriptions());
            layers
        }
        Family::Loss => losses::Loss::descriptions(),
        Family::Metric => metrics::Metric::descriptions(),
        Family::Optimizer => optim::Rule::descriptions(),
        Family::Schedule => schedules::Schedule::descriptions(),
        Family::Strategy => strategy::NamedStrategy::descriptions(),
        Family::Activation => nn::Activation::descriptions(),
        Family::Initializer => nn::Initializer::descriptions(),
        Family::Regularizer => nn::Regularizer::descriptions(),
        Family::Constraint => nn::Constraint::descriptions(),
        Family::Callback => callbacks::descriptions(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;
    use crate::config::{Field, Kind};
    use crate::{Error, Result};
    use serde_json::Value;
    use serde_json::{Map, json};
    use std::ops::Bound;

    #[test]
    fn the_readme_counts_them() {
        let page = include_str!("../../../README.md");
        for (family, what) in [
            (Family::Optimizer, "optimizers"),
            (Family::Loss, "losses"),
            (Family::Metric, "metrics"),
            (Family::Schedule, "schedules"),
        ] {
            let counted = format!(" {} {what}", components(family).len());
            assert!(page.contains(&counted), "no {counted:?} in README.md");
        }
    }

    /// Reads a component as a training file would.
    fn read_component(family: Family, name: &str, settings: &Map<String, Value>) -> Result<()> {
        let fields = Value::Object(settings.clone());
        let variant = || json!({ name: settings });
        let user = |error: serde_json::Error| Error::user(error.to_string());
        match family {
            Family::Layer if models::KINDS.contains(&name) => {
                models::layer_from_config(name, &fields, &[64, 64, 3]).map(drop)
            }
            Family::Layer => nn::layer_from_config(name, &fields).map(drop),
            Family::Loss => losses::Loss::from_config(name, &fields).map(drop),
            Family::Metric => metrics::Metric::from_config(name, &fields).map(drop),
            Family::Optimizer => optim::Optimizer::from_config(name, &fields).map(drop),
            Family::Schedule => schedules::Schedule::from_config(name, &fields).map(drop),
            Family::Strategy => strategy::NamedStrategy::from_config(name, &fields).map(drop),
            Family::Activation => serde_json::from_value::<nn::Activation>(variant())
                .map(drop)
                .map_err(user),
            Family::Initializer => serde_json::from_value::<nn::Initializer>(variant())
                .map(drop)
                .map_err(user),
            Family::Callback => callbacks::from_config(name, &fields).map(drop),
            Family::Regularizer => serde_json::from_value::<nn::Regularizer>(variant())
                .map(drop)
                .map_err(user),
            Family::Constraint => serde_json::from_value::<nn::Constraint>(variant())
                .map(drop)
                .map_err(user),
        }
    }

    /// Values of a kind, at its limits where it has some.
    fn samples(kind: &Kind) -> Vec<Value> {
        let inside = |bound: Bound<f64>, step: f64| match bound {
            Bound::Included(limit) => Some(limit),
            Bound::Excluded(limit) => Some(limit + step),
            Bound::Unbounded => None,
        };
        match kind {
            Kind::Null => vec![Value::Null],
            Kind::Bool => vec![json!(true), json!(false)],
            Kind::Whole(least, most) => {
                let first = (*least).max(0);
                vec![json!(first.min(*most)), json!((first + 1).min(*most))]
            }
            Kind::Number(least, most) => {
                let limits = [inside(*least, 1e-6), inside(*most, -1e-6)];
                let limits: Vec<Value> = limits.into_iter().flatten().map(Value::from).collect();
                if limits.is_empty() {
                    vec![json!(0)]
                } else {
                    limits
                }
            }
            Kind::Text => vec![json!("cpu")],
            Kind::OneOf(words) => words.iter().map(|word| json!(word)).collect(),
            Kind::List(kind, least, _) => {
                vec![vec![samples(kind)[0].clone(); *least].into()]
            }
            Kind::Map(kind) => vec![json!({"data": samples(kind)[0]})],
            Kind::Section(_) | Kind::OneKeyOf(_) => vec![json!({})],
            Kind::Component(Family::Layer) => vec![json!({"lstm": {"units": 1}})],
            Kind::Component(Family::Schedule) => {
                vec![json!({"constant": {"learning_rate": 0.1}})]
            }
            Kind::Component(family) => vec![json!(components(*family).last().unwrap().name)],
            Kind::Components(..) => vec![json!([])],
            Kind::Either(kinds) => kinds.iter().flat_map(samples).collect(),
            Kind::Worded(_, kind) => samples(kind),
        }
    }

    /// Values of a setting of a component, of text that says something one that does.
    fn values(component: &str, field: &Field) -> Vec<Value> {
        match (component, field.name) {
            (_, "equation") => vec![json!("ab,bc->ac")],
            (_, "value_range") => vec![json!([0, 255])],
            ("spectral_norm", "layer") => vec![json!({"dense": {"units": 1}})],
            ("random_gaussian_blur", "kernel_size") => vec![json!(1), json!([3, 5])],
            ("random_posterization", "factor") => vec![json!(1), json!([2, 8])],
            ("stft_spectrogram", "frame_length") => vec![json!(2), json!(200)],
            ("stft_spectrogram", "fft_length") => vec![Value::Null, json!(256), json!(300)],
            ("mel_spectrogram", "fft_length") => vec![json!(2), json!(1024)],
            ("mel_spectrogram", "sampling_rate" | "max_freq") => vec![json!(100), json!(1e6)],
            (_, "output_padding") => vec![Value::Null, json!(0)],
            ("mel_spectrogram", "mag_exp") => vec![json!(0.01), json!(100)],
            _ => samples(&field.kind),
        }
    }

    /// Settings that are refused alone, with what they need.
    fn beside(name: &str, value: &Value) -> Value {
        match name {
            "ema_overwrite_frequency" => json!({"use_ema": true}),
            "bias_initializer" => json!({"unit_forget_bias": false}),
            "groups" => json!({"filters": 2}),
            "num_key_value_heads" => json!({"num_query_heads": value}),
            "mean" => json!({"variance": value, "axis": [-5, -4, -3, -2, -1]}),
            "variance" => json!({"mean": value, "axis": [-5, -4, -3, -2, -1]}),
            "num_labels" => json!({"multi_label": true}),
            "mask_token" => json!({"vocabulary": [5]}),
            "staleness" => json!({"mode": "bounded_staleness"}),
            "backup_workers" => json!({"mode": "sync"}),
            _ => json!({}),
        }
    }

    fn each(check: impl Fn(Family, &Description, &Map<String, Value>)) {
        for family in Family::ALL {
            for component in components(family) {
                let required = component.settings.iter().filter(|s| s.field.is_required());
                let required = required.map(|setting| {
                    let field = setting.field;
                    (
                        field.name.to_owned(),
                        values(component.name, &field)[0].clone(),
                    )
                });
                check(family, &component, &required.collect());
            }
        }
    }

    #[test]
    fn every_declared_setting_is_read_and_no_other() {
        each(|family, component, required| {
            let read = |settings: &Map<_, _>| read_component(family, component.name, settings);
            read(required).unwrap();
            let mut unknown = required.clone();
            unknown.insert("no_such_setting".into(), json!(1));
            assert!(read(&unknown).is_err(), "{}", component.name);
            for setting in &component.settings {
                // A setting of every optimizer, which this one refuses with a reason.
                if setting.field.name == "lazy"
                    && ["lamb", "adafactor", "muon"].contains(&component.name)
                {
                    continue;
                }
                for value in values(component.name, &setting.field) {
                    let mut settings = required.clone();
                    for (name, value) in beside(setting.field.name, &value).as_object().unwrap() {
                        if component.settings.iter().any(|s| s.field.name == name) {
                            settings.insert(name.clone(), value.clone());
                        }
                    }
                    settings.insert(setting.field.name.into(), value);
                    read(&settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
                }
            }
        });
    }

    #[test]
    fn defaults_are_of_their_kind_and_settings_are_documented() {
        each(|_, component, _| {
            assert!(!component.doc.is_empty(), "{}", component.name);
            for Setting { field, default } in &component.settings {
                let name = format!("{}.{}", component.name, field.name);
                assert!(default.is_null() || field.kind.accepts(default), "{name}");
                assert!(!field.doc.is_empty() && !field.doc.ends_with('.'), "{name}");
                assert!(!field.is_required() || !field.example.is_empty(), "{name}");
            }
        });
    }

    #[test]
    fn the_names_are_those_of_the_kinds() {
        let names = |family: Family| -> Vec<&str> {
            let components = components(family).into_iter();
            components.map(|component| component.name).collect()
        };
        assert_eq!(names(Family::Loss), losses::Loss::KINDS);
        assert_eq!(names(Family::Metric), metrics::Metric::KINDS);
        assert_eq!(names(Family::Optimizer), optim::Rule::KINDS);
        assert_eq!(names(Family::Schedule), schedules::Schedule::KINDS);
        assert_eq!(names(Family::Strategy), strategy::NamedStrategy::KINDS);
        assert_eq!(names(Family::Callback), callbacks::KINDS);
        let registry = nn::Registry::standard();
        let mut layers: Vec<&str> = registry.kinds().collect();
        layers.extend(models::KINDS);
        assert_eq!(names(Family::Layer), layers);
    }
}
