//! Hyperparameters as points of the unit cube: a search works there, and each scale says what a place means.

use crate::spec::{Hyperparameters, MOST_INTEGERS, Parameter, ParameterKind, Scale};

impl Hyperparameters {
    /// Values of all parameters by their names, such as trials are given, to look at before the first: in the middle of their scales, and at
    /// both ends.
    #[must_use]
    pub fn samples(&self) -> Vec<Vec<(String, String)>> {
        let of = |place: f64| {
            let named = |parameter: &Parameter| (parameter.name.clone(), value(parameter, place));
            self.params.iter().map(named).collect()
        };
        [0.5, 0.0, 1.0].map(of).to_vec()
    }
}

/// The value of a parameter at a place from 0 to 1, as the program is given it.
pub(super) fn value(parameter: &Parameter, place: f64) -> String {
    let place = place.clamp(0.0, 1.0);
    match &parameter.kind {
        ParameterKind::Double { min, max, scale } => {
            // A name of the number that reads back as it.
            from_unit(place, *min, *max, *scale).to_string()
        }
        ParameterKind::Integer { min, max, scale } => {
            // Each whole number has an equal part of the scale, also the two at its ends.
            let (low, high) = (*min as f64 - 0.5, *max as f64 + 0.5);
            let low = if *scale == Scale::Linear {
                low
            } else {
                low.max(*min as f64 * 0.75)
            };
            let value = from_unit(place, low, high, *scale).round() as i64;
            value.clamp(*min, *max).to_string()
        }
        ParameterKind::Categorical(values) => values[index(place, values.len())].clone(),
        ParameterKind::Discrete(values) => values[index(place, values.len())].to_string(),
    }
}

/// The place of a value that a program was given; `None` if it is none of the parameter's.
pub(super) fn place(parameter: &Parameter, value: &str) -> Option<f64> {
    let middle = |at: usize, count: usize| (at as f64 + 0.5) / count as f64;
    Some(match &parameter.kind {
        ParameterKind::Double { min, max, scale } => {
            let value: f64 = value.parse().ok()?;
            (*min..=*max)
                .contains(&value)
                .then(|| to_unit(value, *min, *max, *scale))?
        }
        ParameterKind::Integer { min, max, scale } => {
            let value: i64 = value.parse().ok()?;
            let (low, high) = (*min as f64 - 0.5, *max as f64 + 0.5);
            let low = if *scale == Scale::Linear {
                low
            } else {
                low.max(*min as f64 * 0.75)
            };
            (*min..=*max)
                .contains(&value)
                .then(|| to_unit(value as f64, low, high, *scale))?
        }
        ParameterKind::Categorical(values) => {
            let at = values.iter().position(|known| known == value)?;
            middle(at, values.len())
        }
        ParameterKind::Discrete(values) => {
            let value: f64 = value.parse().ok()?;
            let at = values.iter().position(|known| *known == value)?;
            middle(at, values.len())
        }
    })
}

/// All values of a parameter with finitely many.
pub(super) fn values(parameter: &Parameter) -> Option<Vec<String>> {
    match &parameter.kind {
        ParameterKind::Double { .. } => None,
        ParameterKind::Integer { min, max, .. } => {
            let few = max
                .checked_sub(*min)
                .is_some_and(|width| width < MOST_INTEGERS);
            few.then(|| (*min..=*max).map(|value| value.to_string()).collect())
        }
        ParameterKind::Categorical(values) => Some(values.clone()),
        ParameterKind::Discrete(values) => Some(values.iter().map(ToString::to_string).collect()),
    }
}

fn index(place: f64, count: usize) -> usize {
    ((place * count as f64) as usize).min(count - 1)
}

fn from_unit(place: f64, min: f64, max: f64, scale: Scale) -> f64 {
    if place == 0.0 || place == 1.0 {
        return if place == 0.0 { min } else { max };
    }
    let value = match scale {
        Scale::Linear => min + place * (max - min),
        Scale::Log => min * (max / min).powf(place),
        Scale::ReverseLog => max + min - min * (max / min).powf(1.0 - place),
    };
    value.clamp(min, max)
}

fn to_unit(value: f64, min: f64, max: f64, scale: Scale) -> f64 {
    if min == max {
        return 0.5;
    }
    let place = match scale {
        Scale::Linear => (value - min) / (max - min),
        Scale::Log => (value / min).ln() / (max / min).ln(),
        Scale::ReverseLog => 1.0 - ((max + min - value) / min).ln() / (max / min).ln(),
    };
    place.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(kind: ParameterKind) -> Parameter {
        Parameter {
            name: "x".into(),
            kind,
        }
    }

    #[test]
    fn places_and_values_are_each_others_inverse() {
        for scale in [Scale::Linear, Scale::Log, Scale::ReverseLog] {
            let double = parameter(ParameterKind::Double {
                min: 1e-4,
                max: 0.1,
                scale,
            });
            let integer = parameter(ParameterKind::Integer {
                min: 1,
                max: 64,
                scale,
            });
            assert_eq!(value(&double, 0.0), "0.0001");
            assert_eq!(value(&double, 1.0), "0.1");
            let mut seen = std::collections::BTreeSet::new();
            for step in 0..=1000 {
                let at = f64::from(step) / 1000.0;
                let back = place(&double, &value(&double, at)).unwrap();
                assert!((back - at).abs() < 1e-9, "{scale:?} {at} {back}");
                let whole = value(&integer, at);
                assert_eq!(value(&integer, place(&integer, &whole).unwrap()), whole);
                seen.insert(whole);
            }
            assert_eq!(seen.len(), 64, "{scale:?}");
        }
        let middle = |scale| {
            let double = parameter(ParameterKind::Double {
                min: 1.0,
                max: 100.0,
                scale,
            });
            value(&double, 0.5).parse::<f64>().unwrap().round()
        };
        assert_eq!(
            [Scale::Linear, Scale::Log, Scale::ReverseLog].map(middle),
            [51.0, 10.0, 91.0]
        );
    }

    #[test]
    fn lists_give_each_value_an_equal_part() {
        let names = parameter(ParameterKind::Categorical(
            ["a", "b", "c"].map(Into::into).into(),
        ));
        let numbers = parameter(ParameterKind::Discrete(vec![0.5, 8.0, 16.0]));
        for (at, name, number) in [
            (0.0, "a", "0.5"),
            (0.33, "a", "0.5"),
            (0.34, "b", "8"),
            (0.99, "c", "16"),
            (1.0, "c", "16"),
        ] {
            assert_eq!(
                (value(&names, at).as_str(), value(&numbers, at).as_str()),
                (name, number)
            );
        }
        assert_eq!(place(&names, "b"), Some(0.5));
        assert_eq!(place(&numbers, "8"), Some(0.5));
        assert_eq!(place(&names, "d"), None);
        assert_eq!(place(&numbers, "nan"), None);
    }
}
