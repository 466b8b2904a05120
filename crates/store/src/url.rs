//! URLs of objects: `s3://bucket/prefix` and `gs://bucket/prefix`.

use std::fmt;

use crate::StoreError;

/// Whose buckets they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3, and servers that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
}

impl Scheme {
    /// What is before `://`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
        }
    }
}

/// An object, or all objects under a prefix, in a bucket. It has no secrets in it: credentials come from the environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectUrl {
    scheme: Scheme,
    bucket: String,
    key: String,
}

/// S3's limit for a key is 1024 bytes, and names are added to a prefix.
const MAX_KEY: usize = 800;

impl ObjectUrl {
    /// Whether a text is meant as a URL, of whatever scheme, and not as the path of a file: whether it has a scheme of two letters and
    /// more before `://`.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        scheme_and_rest(text).is_some()
    }

    /// Reads `s3://bucket/prefix` or `gs://bucket/prefix`; slashes at the end are left out.
    ///
    /// # Errors
    /// [`StoreError::Url`] when it is no such URL. A part that may be a password is not in the text.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |message: String| Err(StoreError::Url(message));
        let Some((name, rest)) = scheme_and_rest(text) else {
            return wrong(format!(
                "`{}` is no URL; expected s3://bucket/prefix or gs://bucket/prefix",
                printable(text)
            ));
        };
        let scheme = match name.to_ascii_lowercase().as_str() {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gs,
            other => return wrong(unknown_scheme(other)),
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(scheme, bucket)?;
        let url = Self {
            scheme,
            bucket: bucket.to_owned(),
            key: key.trim_end_matches('/').to_owned(),
        };
        check_key(&url)?;
        Ok(url)
    }

    /// Whose bucket it is in.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What is after the bucket, without a slash at either end.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The object of this name under it.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self {
            key: format!("{}/{name}", self.key),
            ..self.clone()
        }
    }

    /// The bucket alone, as in `s3://bucket`.
    #[cfg(feature = "cloud")]
    pub(crate) fn of_bucket(&self) -> String {
        format!("{}://{}", self.scheme.name(), self.bucket)
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme.name(), self.bucket, self.key)
    }
}

/// The scheme and what is after `://`. Names of one letter are drives of Windows.
fn scheme_and_rest(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && (scheme.chars()).all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some((scheme, rest))
}

fn unknown_scheme(scheme: &str) -> String {
    let hint = match scheme {
        "s3a" | "s3n" => "; write s3://",
        "gcs" => "; write gs://",
        _ => "",
    };
    let scheme = printable(scheme);
    format!("`{scheme}://` is no store that is known here: expected a folder, s3:// or gs://{hint}")
}

fn check_bucket(scheme: Scheme, bucket: &str) -> Result<(), StoreError> {
    let scheme = scheme.name();
    // Not shown: who writes `s3://key:secret@bucket` has a secret there.
    if bucket.contains(['@', ':']) {
        return Err(StoreError::Url(format!(
            "the URL {scheme}://.. has `@` or `:` before its first slash, and expected is a bucket alone; credentials and addresses of servers come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST)"
        )));
    }
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_good = (3..=222).contains(&bucket.len())
        && bucket.starts_with(is_edge)
        && bucket.ends_with(is_edge)
        && bucket
            .chars()
            .all(|c| is_edge(c) || matches!(c, '.' | '-' | '_'));
    if is_good {
        return Ok(());
    }
    Err(StoreError::Url(format!(
        "`{}` is no name of a bucket in {scheme}://: expected 3 to 222 lower-case letters, digits, `-`, `_` and `.`, as in {scheme}://my-bucket/digits",
        printable(bucket)
    )))
}

fn check_key(url: &ObjectUrl) -> Result<(), StoreError> {
    let wrong = |problem: String| {
        let (scheme, bucket) = (url.scheme.name(), &url.bucket);
        Err(StoreError::Url(format!(
            "what is after the bucket in {scheme}://{bucket}/.. {problem}, as in {scheme}://{bucket}/runs/digits"
        )))
    };
    if url.key.is_empty() {
        return wrong("is empty; expected a prefix".to_owned());
    }
    if url.key.len() > MAX_KEY {
        let len = url.key.len();
        return wrong(format!("has {len} bytes; expected up to {MAX_KEY}"));
    }
    if (url.key.split('/')).any(|part| matches!(part, "" | "." | "..")) {
        return wrong("has an empty part, `.` or `..`; expected names".to_owned());
    }
    if let Some(bad) = (url.key.chars()).find(|c| c.is_control() || "?#\\%*".contains(*c)) {
        return wrong(format!("has {bad:?}, which is not used in names here"));
    }
    Ok(())
}

/// At most 60 characters, those that control a terminal replaced.
fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let end = if text.chars().count() > 60 { ".." } else { "" };
    text.chars().take(60).map(clean).collect::<String>() + end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_are_read() {
        let url = ObjectUrl::parse("s3://my-bucket/runs/digits//").unwrap();
        assert_eq!((url.bucket(), url.key()), ("my-bucket", "runs/digits"));
        assert_eq!(
            url.join("a.json").to_string(),
            "s3://my-bucket/runs/digits/a.json"
        );
        assert_eq!(
            ObjectUrl::parse("GS://b_1/x").unwrap().to_string(),
            "gs://b_1/x"
        );
        assert!(!ObjectUrl::is_url("C://x") && !ObjectUrl::is_url("runs/a:b//c"));
        assert!(ObjectUrl::is_url("hdfs://x/y"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("runs/digits", "is no URL"),
            ("s3a://bucket/x", "write s3://"),
            ("gcs://bucket/x", "write gs://"),
            ("hdfs://bucket/x", "expected a folder, s3:// or gs://"),
            ("s3://Bucket/x", "is no name of a bucket"),
            ("s3:///x", "is no name of a bucket"),
            ("s3://bucket", "expected a prefix"),
            ("s3://bucket/", "expected a prefix"),
            ("s3://bucket/a//b", "has an empty part"),
            ("s3://bucket/a/../b", "has an empty part, `.` or `..`"),
            ("s3://bucket/a?versionId=1", "has '?'"),
            ("s3://bucket/a\u{7}", "has '\\u{7}'"),
        ] {
            let error = ObjectUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = format!("s3://bucket/{}", "x".repeat(801));
        let error = ObjectUrl::parse(&long).unwrap_err().to_string();
        assert!(error.contains("has 801 bytes"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic_and_errors_are_short(text in "\\PC*|.*") {
            if let Err(error) = ObjectUrl::parse(&text) {
                let error = error.to_string();
                prop_assert!(error.len() < 1000 && !error.contains(char::is_control), "{error}");
            }
        }

        #[test]
        fn a_url_is_read_back_as_it_is_shown(text in "(s3|gs|S3)://[a-z0-9._-]{2,8}/[a-z./?%#é -]{0,12}/{0,3}") {
            if let Ok(url) = ObjectUrl::parse(&text) {
                prop_assert_eq!(ObjectUrl::parse(&url.to_string()).unwrap(), url.clone());
                prop_assert!(url.key().split('/').all(|part| !matches!(part, "" | "." | "..")));
                prop_assert!(text.trim_end_matches('/').ends_with(url.key()));
            }
        }

        #[test]
        fn a_password_is_in_no_error(user in "[A-Z]{8}", secret in "[A-Za-z0-9+=]{12,40}", key in "[a-z]{0,5}") {
            for text in [format!("s3://{user}:{secret}@bucket/{key}"), format!("gs://{secret}@bucket/{key}")] {
                let error = ObjectUrl::parse(&text).unwrap_err().to_string();
                prop_assert!(!error.contains(&secret) && !error.contains(&user), "{error}");
            }
        }
    }
}
