//! Numbers in JSON texts: those that are infinite or none are written as the hexadecimal digits of their bits, since JSON has no others.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Numbers that a text can hold, whatever they are.
pub(crate) trait Numbers: Sized {
    /// As they are written.
    type Written: Serialize + DeserializeOwned;

    fn written(&self) -> Self::Written;

    /// What was written; `None` where it is no number.
    fn read(written: Self::Written) -> Option<Self>;
}

/// A number as it is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum WrittenNumber {
    Finite(f64),
    Bits(String),
}

impl Numbers for f64 {
    /// Earlier versions wrote `null` for a number that is not finite.
    type Written = Option<WrittenNumber>;

    fn written(&self) -> Self::Written {
        Some(match self.is_finite() {
            true => WrittenNumber::Finite(*self),
            false => WrittenNumber::Bits(format!("{:016x}", self.to_bits())),
        })
    }

    fn read(written: Self::Written) -> Option<Self> {
        match written {
            None => Some(Self::NAN),
            Some(WrittenNumber::Finite(number)) => Some(number),
            Some(WrittenNumber::Bits(digits)) => {
                let bits = u64::from_str_radix(&digits, 16);
                bits.ok().map(Self::from_bits)
            }
        }
    }
}

impl<T: Numbers> Numbers for Vec<T> {
    type Written = Vec<T::Written>;

    fn written(&self) -> Self::Written {
        self.iter().map(T::written).collect()
    }

    fn read(written: Self::Written) -> Option<Self> {
        written.into_iter().map(T::read).collect()
    }
}

impl<T: Numbers> Numbers for Option<Vec<T>> {
    type Written = Option<Vec<T::Written>>;

    fn written(&self) -> Self::Written {
        self.as_ref().map(Vec::written)
    }

    fn read(written: Self::Written) -> Option<Self> {
        match written {
            None => Some(None),
            Some(written) => Vec::read(written).map(Some),
        }
    }
}

/// A version, and numbers of it.
impl<T: Numbers> Numbers for Option<(u64, T)> {
    type Written = Option<(u64, T::Written)>;

    fn written(&self) -> Self::Written {
        let written = |(version, numbers): &(u64, T)| (*version, numbers.written());
        self.as_ref().map(written)
    }

    fn read(written: Self::Written) -> Option<Self> {
        match written {
            None => Some(None),
            Some((version, written)) => T::read(written).map(|numbers| Some((version, numbers))),
        }
    }
}

pub(crate) fn serialize<T: Numbers, S: Serializer>(
    numbers: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    numbers.written().serialize(serializer)
}

pub(crate) fn deserialize<'de, T: Numbers, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let written = T::Written::deserialize(deserializer)?;
    let no_number = || D::Error::custom("expected a number, or the 16 hexadecimal digits of one");
    T::read(written).ok_or_else(no_number)
}

#[cfg(test)]
mod tests {
    use crate::message::{Commit, Part, Reply, Request};
    use crate::{Frame, Grant, Phase, decode_frame, encode_frame};

    const ODD: [f64; 5] = [
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.1 + 0.2,
        f64::MIN_POSITIVE / 3.0,
    ];

    fn bits(numbers: &[f64]) -> Vec<u64> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    fn sent(reply: &Reply) -> Reply {
        let frame = encode_frame(reply, &[]).unwrap();
        let read: Frame<Reply> = decode_frame(&mut &frame[..]).unwrap().unwrap();
        read.message
    }

    #[test]
    fn numbers_of_messages_come_as_they_are() {
        let phase = Phase {
            sums: ODD.to_vec(),
            ..Phase::default()
        };
        let Reply::Grant(grant) = sent(&Reply::Grant(Box::new(Grant::Over(phase)))) else {
            panic!("another reply");
        };
        let Grant::Over(phase) = *grant else {
            panic!("another grant");
        };
        assert_eq!(bits(&phase.sums), bits(&ODD));
        let Reply::Squares(squares) = sent(&Reply::Squares(ODD.to_vec())) else {
            panic!("another reply");
        };
        assert_eq!(bits(&squares), bits(&ODD));
        let staged = Reply::Staged {
            squares: ODD.to_vec(),
            duplicate: false,
        };
        assert!(
            matches!(sent(&staged), Reply::Staged { squares, .. } if bits(&squares) == bits(&ODD))
        );
    }

    #[test]
    fn numbers_of_requests_come_as_they_are() {
        let part = Part {
            work: 1,
            weight: f64::INFINITY,
            rows: 2.0,
        };
        let commit = Commit {
            version: 3,
            parts: vec![part],
            factors: Some(vec![f64::INFINITY, 0.5]),
        };
        let text = serde_json::to_string(&commit).unwrap();
        assert_eq!(serde_json::from_str::<Commit>(&text).unwrap(), commit);
        let done = Request::Done {
            phase: "phase".into(),
            work: 1,
            weight: f64::NEG_INFINITY,
            rows: 1.0,
            staleness: 0,
        };
        let text = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), done);
    }

    /// Logs and snapshots of earlier versions.
    #[test]
    fn numbers_that_were_written_before_are_read() {
        let commit =
            r#"{"version":3,"parts":[{"work":1,"weight":2,"rows":3.5}],"factors":[1,0.25]}"#;
        let commit: Commit = serde_json::from_str(commit).unwrap();
        assert_eq!(commit.factors, Some(vec![1.0, 0.25]));
        assert_eq!((commit.parts[0].weight, commit.parts[0].rows), (2.0, 3.5));
        let none = r#"{"version":3,"parts":[],"factors":null}"#;
        let none: Commit = serde_json::from_str(none).unwrap();
        assert_eq!(none.factors, None);
        let squares: Reply = serde_json::from_str(r#"{"squares":[null,1]}"#).unwrap();
        assert!(matches!(squares, Reply::Squares(all) if all[0].is_nan() && all[1] == 1.0));
        let wrong = serde_json::from_str::<Reply>(r#"{"squares":["none"]}"#).unwrap_err();
        assert!(wrong.to_string().contains("expected a number"), "{wrong}");
    }
}
