//! Why a call failed, and what to do: from the answer of the server, of which nothing but status, code and message is shown.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use super::credentials::nobody;
use crate::{ObjectUrl, Scheme, StoreError};

/// The most characters of a server's message that are shown.
const MOST: usize = 300;
/// Where machines of Amazon and Google ask who they are: in an error, nothing else has said it.
const METADATA: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];
/// What servers call credentials that they do not know.
const UNKNOWN: [&str; 4] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
];

/// Whether a server refused a part of an object that is empty, or gave all of it.
pub(super) fn is_without_part(error: &object_store::Error) -> bool {
    let is_whole = |text: &String| text.starts_with("Received non-partial response");
    Answer::of(error).status == Some(416) || chain(error).iter().any(is_whole)
}

/// Whether a call that failed so may succeed later: the server was busy, or the connection broke.
pub(super) fn may_pass(error: &object_store::Error) -> bool {
    let breaks = |kind| {
        use HttpErrorKind::{Connect, Interrupted, Request, Timeout};
        matches!(kind, Connect | Interrupted | Request | Timeout)
    };
    if let Some(status) = Answer::of(error).status {
        return matches!(status, 408 | 429 | 500..=599);
    }
    let mut next = Some(error as &dyn Error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return breaks(error.kind());
        }
        next = error.source();
    }
    false
}

pub(super) fn explained(
    action: &'static str,
    url: &ObjectUrl,
    error: &object_store::Error,
) -> StoreError {
    let answer = Answer::of(error);
    if let object_store::Error::InvalidPath { source } = error {
        let name = clean(&source.to_string());
        return StoreError::Refused {
            action,
            url: url.to_string(),
            reason: format!(
                "the bucket `{}` has an object whose name cannot be used ({name}); give it one without parts that are empty, `.` or `..`, or name a URL that it is not under",
                url.bucket()
            ),
        };
    }
    let url = url.clone();
    if answer.status == Some(404) && action != "list" && answer.code != "NoSuchBucket" {
        return StoreError::Missing {
            url: url.to_string(),
        };
    }
    StoreError::Refused {
        action,
        url: url.to_string(),
        reason: reason(&url, &answer),
    }
}

fn reason(url: &ObjectUrl, answer: &Answer) -> String {
    let (bucket, scheme, said) = (url.bucket(), url.scheme(), answer.shown());
    if answer.is_of_metadata {
        return format!(
            "{}; the machine's own server has none: {said}",
            nobody(scheme)
        );
    }
    let (create, credentials) = match scheme {
        Scheme::S3 => (
            format!("aws s3 mb s3://{bucket}"),
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile, or the machine's role",
        ),
        Scheme::Gs => (
            format!("gcloud storage buckets create gs://{bucket}"),
            "GOOGLE_APPLICATION_CREDENTIALS, or what `gcloud auth application-default login` wrote",
        ),
    };
    match answer.status {
        _ if UNKNOWN.contains(&answer.code.as_str()) => {
            format!("the credentials are wrong ({said}); expected the ones of {credentials}")
        }
        _ if answer.code == "RequestTimeTooSkewed" => {
            format!("the clock of this machine is wrong ({said}); set it, or let it be set (NTP)")
        }
        Some(404) => format!(
            "there is no bucket `{bucket}` ({said}); correct the URL or the address of the server, or create it: `{create}`"
        ),
        Some(401 | 403) => format!(
            "access to the bucket `{bucket}` is denied ({said}); let whoever has these credentials list, read, write and delete there, or use others: {credentials}"
        ),
        Some(300..=399) => format!(
            "the bucket `{bucket}` is in another region ({said}); set AWS_REGION to the region of the bucket"
        ),
        Some(408 | 429 | 500..=599) => format!(
            "the server of bucket `{bucket}` is too busy or broken ({said}), and was for as long as it was tried; look at its state, or try for longer: PHALANX_STORE_RETRY is the time in seconds"
        ),
        Some(_) => format!(
            "the server of bucket `{bucket}` does not do it ({said}); look at the address of the server and at AWS_REGION"
        ),
        None if said.starts_with("timeout: per ") => format!(
            "the server of bucket `{bucket}` took and sent nothing for a minute or more ({said}), and it was so when it was tried again; look at the network and at the server's state, or try for longer: PHALANX_STORE_RETRY is the time in seconds"
        ),
        None => format!(
            "the server of bucket `{bucket}` cannot be reached ({said}); look at the network, the proxy and the address of the server (AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST), or try for longer: PHALANX_STORE_RETRY is the time in seconds"
        ),
    }
}

/// What a server answered.
struct Answer {
    /// None where it did not answer.
    status: Option<u16>,
    /// The name of the error; empty where there is none.
    code: String,
    text: String,
    is_of_metadata: bool,
}

impl Answer {
    fn of(error: &object_store::Error) -> Self {
        let chain = chain(error);
        let is_answer = |text: &&String| text.starts_with("Server returned");
        let answer = chain.iter().find(is_answer);
        let between = |start: &str, end: &str| {
            let (_, rest) = answer?.split_once(start)?;
            Some(rest.split_once(end)?.0.to_owned())
        };
        let status = between("status code: ", ":").unwrap_or_default();
        let is_redirect = chain
            .iter()
            .any(|text| text.starts_with("Received redirect"));
        let number = status
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        let code = between("<Code>", "</Code>").unwrap_or_default();
        let parts = [
            status,
            code.clone(),
            between("<Message>", "</Message>").unwrap_or_default(),
        ];
        let said: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let last = chain.last().cloned().unwrap_or_default();
        Self {
            status: number.or(is_redirect.then_some(301)),
            code,
            text: if said.is_empty() {
                last
            } else {
                said.join(": ")
            },
            is_of_metadata: chain
                .iter()
                .any(|text| METADATA.iter().any(|name| text.contains(name))),
        }
    }

    fn shown(&self) -> String {
        clean(&self.text)
    }
}

/// The texts of an error and of those that it was made from.
fn chain(error: &dyn Error) -> Vec<String> {
    let mut texts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    texts
}

/// The text of the error that others were made from.
pub(super) fn innermost(error: &dyn Error) -> String {
    clean(&chain(error).pop().unwrap_or_default())
}

fn clean(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let end = if text.chars().count() > MOST {
        ".."
    } else {
        ""
    };
    let text = text.trim().chars().take(MOST).map(printable);
    text.collect::<String>() + end
}
