//! What settings a component takes and what their values may be: read by the parser, the messages, the reference page
//! and the JSON Schema of training files alike.

use std::ops::Bound;

use serde_json::Value;

use super::Family;

/// One setting: its name, what its value may be, and what it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// The name, such as `units`.
    pub name: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What holds where it is left out.
    pub default: DefaultValue,
    /// What it does, as a phrase.
    pub doc: &'static str,
    /// A value to imitate, as YAML writes it.
    pub example: &'static str,
}

/// What holds where a setting is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// It must be given.
    Required,
    /// The component's own default, see [`Description`](super::Description).
    Own,
    /// This value, as YAML writes it.
    Value(&'static str),
    /// What these words say.
    Words(&'static str),
}

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A whole number in a range whose ends are included.
    Whole(i64, i64),
    /// A number in a range.
    Number(Bound<f64>, Bound<f64>),
    /// Text that is not empty.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of at least and at most this many values.
    List(&'static Self, usize, usize),
    /// Names of the user's, each with a value.
    Map(&'static Self),
    /// A mapping with these keys.
    Section(&'static [Field]),
    /// A mapping with exactly one of these keys.
    OneKeyOf(&'static [Field]),
    /// A component: its name, or its name with settings.
    Component(Family),
    /// A list of at least and at most this many components.
    Components(Family, usize, usize),
    /// Any of these.
    Either(&'static [Self]),
    /// Another kind, described by these words.
    Worded(&'static str, &'static Self),
}

impl Field {
    /// A setting that must be given.
    #[must_use]
    pub const fn required(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self::new(name, kind, DefaultValue::Required, doc)
    }

    /// A setting whose default is the component's.
    #[must_use]
    pub const fn optional(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self::new(name, kind, DefaultValue::Own, doc)
    }

    /// A setting.
    #[must_use]
    pub const fn new(
        name: &'static str,
        kind: Kind,
        default: DefaultValue,
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            doc,
            example: "",
        }
    }

    /// The setting with a value to imitate.
    #[must_use]
    pub const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// The setting with values of another kind.
    #[must_use]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The setting with another description.
    #[must_use]
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Whether it must be given.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        matches!(self.default, DefaultValue::Required)
    }
}

impl Kind {
    /// The size of a dimension.
    pub const SIZE: Self = Self::Whole(1, i32::MAX as i64);
    /// A whole number that is not negative.
    pub const COUNT: Self = Self::Whole(0, i64::MAX);
    /// A whole number above 0.
    pub const POSITIVE: Self = Self::Whole(1, i64::MAX);
    /// Any whole number.
    pub const INTEGER: Self = Self::Whole(i64::MIN, i64::MAX);
    /// Any number.
    pub const REAL: Self = Self::Number(Bound::Unbounded, Bound::Unbounded);
    /// A number that is not negative.
    pub const AT_LEAST_ZERO: Self = Self::Number(Bound::Included(0.0), Bound::Unbounded);
    /// A number above 0.
    pub const ABOVE_ZERO: Self = Self::Number(Bound::Excluded(0.0), Bound::Unbounded);
    /// A number from 0 to 1.
    pub const SHARE: Self = Self::Number(Bound::Included(0.0), Bound::Included(1.0));
    /// A number from 0 to 1, 1 excluded.
    pub const DECAY: Self = Self::Number(Bound::Included(0.0), Bound::Excluded(1.0));
    /// Height and width, equal when given as one number.
    pub const PAIR: Self = Self::Worded(
        "a whole number above 0, or two: 3 or [3, 3]",
        &Self::Either(&[Self::SIZE, Self::List(&Self::SIZE, 2, 2)]),
    );
    /// Depth, height and width, equal when given as one number.
    pub const TRIPLE: Self = Self::Worded(
        "a whole number above 0, or three: 3 or [3, 3, 3]",
        &Self::Either(&[Self::SIZE, Self::List(&Self::SIZE, 3, 3)]),
    );
    /// A list of text.
    pub const TEXTS: Self = Self::List(&Self::Text, 0, usize::MAX);

    /// Whether a value is of this kind.
    ///
    /// A component is accepted by its form alone: its name and settings are looked up when it is read.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Bool => value.is_boolean(),
            Self::Whole(least, most) => value
                .as_i64()
                .is_some_and(|value| (*least..=*most).contains(&value)),
            Self::Number(least, most) => value
                .as_f64()
                .is_some_and(|value| std::ops::RangeBounds::contains(&(*least, *most), &value)),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::List(kind, least, most) => value.as_array().is_some_and(|items| {
                (*least..=*most).contains(&items.len()) && items.iter().all(|i| kind.accepts(i))
            }),
            Self::Map(kind) => value
                .as_object()
                .is_some_and(|fields| fields.values().all(|value| kind.accepts(value))),
            Self::Section(_) | Self::OneKeyOf(_) => value.is_object(),
            Self::Component(Family::Schedule) => value.is_object(),
            Self::Component(_) => {
                value.is_string() || value.as_object().is_some_and(|fields| fields.len() == 1)
            }
            Self::Components(family, least, most) => value.as_array().is_some_and(|items| {
                let each = Self::Component(*family);
                (*least..=*most).contains(&items.len()) && items.iter().all(|i| each.accepts(i))
            }),
            Self::Either(kinds) => kinds.iter().any(|kind| kind.accepts(value)),
            Self::Worded(_, kind) => kind.accepts(value),
        }
    }

    /// What a value may be, in words: `a whole number from 1 to 100`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Whole(i64::MIN, i64::MAX) => "a whole number".to_owned(),
            Self::Whole(least, i64::MAX) => format!("a whole number of at least {least}"),
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::Number(least, most) => number_words(*least, *most),
            Self::Text => "text".to_owned(),
            Self::OneOf(words) => joined(words, "or"),
            Self::List(kind, least, most) if least == most => {
                format!("a list of {least} values, each {}", kind.words())
            }
            Self::List(kind, ..) => format!("a list of values, each {}", kind.words()),
            Self::Map(kind) => format!("names with values, each {}", kind.words()),
            Self::Section(fields) => {
                let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
                format!("a mapping with the keys {}", joined(&names, "and"))
            }
            Self::OneKeyOf(fields) => {
                let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
                format!("one of {}", joined(&names, "and"))
            }
            Self::Component(family) => family.one().to_owned(),
            Self::Components(family, ..) => format!("a list of {}", family.many()),
            Self::Either(kinds) => {
                let words: Vec<String> = kinds.iter().map(Self::words).collect();
                words.join(", or ")
            }
            Self::Worded(words, _) => (*words).to_owned(),
        }
    }

    /// The words among which the value is, where it is one of some.
    pub(super) fn choices(&self) -> &'static [&'static str] {
        match self {
            Self::OneOf(words) => words,
            Self::Worded(_, kind) => kind.choices(),
            _ => &[],
        }
    }
}

/// `a, b or c`.
fn joined(words: &[&str], last: &str) -> String {
    match words {
        [] => "nothing".to_owned(),
        [word] => (*word).to_owned(),
        [words @ .., end] => format!("{} {last} {end}", words.join(", ")),
    }
}

fn number_words(least: Bound<f64>, most: Bound<f64>) -> String {
    use Bound::{Excluded, Included, Unbounded};
    let shown = |number: f64| match number.abs() {
        1e-4..1e7 | 0.0 => number.to_string(),
        _ => format!("{number:e}"),
    };
    match (least, most) {
        (Included(a), Included(b)) => format!("a number from {} to {}", shown(a), shown(b)),
        (Excluded(a), Included(b)) => format!("a number above {}, up to {}", shown(a), shown(b)),
        _ => {
            let least = match least {
                Included(a) => format!(" of at least {}", shown(a)),
                Excluded(a) => format!(" above {}", shown(a)),
                Unbounded => String::new(),
            };
            let join = match most {
                Unbounded => "",
                _ if !least.is_empty() => " and ",
                Included(_) => " of ",
                Excluded(_) => " ",
            };
            let most = match most {
                Included(b) => format!("at most {}", shown(b)),
                Excluded(b) => format!("below {}", shown(b)),
                Unbounded => String::new(),
            };
            format!("a number{least}{join}{most}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind, its words, a value that it takes, and one that it does not, as JSON.
    const CASES: [(Kind, &str, &str, &str); 14] = [
        (Kind::Bool, "true or false", "true", r#""yes""#),
        (Kind::SIZE, "a whole number from 1 to 2147483647", "1", "0"),
        (Kind::COUNT, "a whole number of at least 0", "0", "-1"),
        (Kind::INTEGER, "a whole number", "-3", "1.5"),
        (Kind::REAL, "a number", "-3", r#""3""#),
        (Kind::ABOVE_ZERO, "a number above 0", "1e-9", "0"),
        (Kind::DECAY, "a number of at least 0 and below 1", "0", "1"),
        (
            Kind::Number(Bound::Unbounded, Bound::Included(0.0)),
            "a number of at most 0",
            "-1",
            "1",
        ),
        (
            Kind::Number(Bound::Excluded(0.0), Bound::Included(4.0)),
            "a number above 0, up to 4",
            "4",
            "0",
        ),
        (
            Kind::Number(Bound::Included(1e-30), Bound::Included(1e30)),
            "a number from 1e-30 to 1e30",
            "1",
            "0",
        ),
        (
            Kind::OneOf(&["a", "b", "c"]),
            "a, b or c",
            r#""b""#,
            r#""d""#,
        ),
        (
            Kind::List(&Kind::SIZE, 2, 2),
            "a list of 2 values, each a whole number from 1 to 2147483647",
            "[1, 2]",
            "[1]",
        ),
        (
            Kind::Component(Family::Layer),
            "a layer",
            r#"{"dense": 1}"#,
            "1",
        ),
        (
            Kind::Either(&[Kind::Null, Kind::Bool]),
            "null, or true or false",
            "null",
            "0",
        ),
    ];

    #[test]
    fn words_and_values_agree() {
        for (kind, words, right, wrong) in CASES {
            let [right, wrong] = [right, wrong].map(|text| serde_json::from_str(text).unwrap());
            assert_eq!(kind.words(), words);
            assert!(kind.accepts(&right), "{words}: {right}");
            assert!(!kind.accepts(&wrong), "{words}: {wrong}");
        }
    }
}
