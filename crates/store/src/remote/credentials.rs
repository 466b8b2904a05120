//! Who this program is for a store, and where the store is: from the variables and files that AWS's and Google's own tools read.

use std::collections::HashMap;
use std::env;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as S3Key};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, RetryConfig};

use super::http::Connector;
use super::reason::innermost;
use crate::{ObjectUrl, Scheme};

/// The machine that tells machines of Amazon and Google who they are.
const METADATA: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
const METADATA_LIMIT: Duration = Duration::from_secs(2);

pub(super) fn store(
    url: &ObjectUrl,
    retry: RetryConfig,
    silence: Duration,
) -> Result<Box<dyn ObjectStore>, String> {
    let connector = Connector { silence };
    let wrong = |error: object_store::Error| {
        format!(
            "{}; correct the environment or the file that it names",
            innermost(&error)
        )
    };
    match url.scheme() {
        Scheme::S3 => {
            let builder = with_profile(AmazonS3Builder::from_env())?
                .with_bucket_name(url.bucket())
                .with_retry(retry)
                .with_http_connector(connector)
                // A removal of several is a POST, which is not tried again, and its refusals are in an answer of success.
                .with_disable_bulk_delete(true);
            Ok(Box::new(builder.build().map_err(wrong)?))
        }
        Scheme::Gs => {
            let builder = google()?
                .with_bucket_name(url.bucket())
                .with_retry(retry)
                .with_http_connector(connector);
            Ok(Box::new(builder.build().map_err(wrong)?))
        }
    }
}

/// Adds what the profile of AWS's tools says, where the environment has no credentials.
fn with_profile(mut builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    let has = |builder: &AmazonS3Builder, key: S3Key| builder.get_config_value(&key).is_some();
    let name = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
    if !has(&builder, S3Key::Region) {
        let settings = aws_file("AWS_CONFIG_FILE", "config");
        let section = match name.as_str() {
            "default" => name.clone(),
            name => format!("profile {name}"),
        };
        if let Some(region) = profile(&settings, &section).get("region") {
            builder = builder.with_region(*region);
        }
    }
    let elsewhere = [
        S3Key::AccessKeyId,
        S3Key::SecretAccessKey,
        S3Key::WebIdentityTokenFile,
        S3Key::ContainerCredentialsRelativeUri,
        S3Key::ContainerCredentialsFullUri,
        S3Key::MetadataEndpoint,
    ];
    let is_anonymous = env::var_os("AWS_SKIP_SIGNATURE").is_some();
    if is_anonymous || elsewhere.into_iter().any(|key| has(&builder, key)) {
        return Ok(builder);
    }
    let text = aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let found = profile(&text, &name);
    if let (Some(key), Some(secret)) = (
        found.get("aws_access_key_id"),
        found.get("aws_secret_access_key"),
    ) {
        let token = found.get("aws_session_token");
        builder = builder
            .with_access_key_id(*key)
            .with_secret_access_key(*secret);
        return Ok(match token {
            Some(token) => builder.with_token(*token),
            None => builder,
        });
    }
    if has_metadata_server() {
        return Ok(builder);
    }
    Err(nobody(Scheme::S3).to_owned())
}

/// The text of a file of AWS's tools; empty where there is none.
fn aws_file(variable: &str, name: &str) -> String {
    let path = env::var_os(variable).map(PathBuf::from).or_else(|| {
        let home = env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".aws").join(name))
    });
    path.and_then(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default()
}

/// The settings of a section of such a file.
fn profile<'t>(text: &'t str, section: &str) -> HashMap<&'t str, &'t str> {
    let mut is_in = false;
    let mut found = HashMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            is_in = name.trim() == section;
        } else if let (true, Some((key, value))) = (is_in, line.split_once('=')) {
            found.insert(key.trim(), value.trim());
        }
    }
    found
}

/// Google's store: an emulator where STORAGE_EMULATOR_HOST names one, as for Google's own clients.
fn google() -> Result<GoogleCloudStorageBuilder, String> {
    let builder = GoogleCloudStorageBuilder::from_env();
    if let Ok(host) = env::var("STORAGE_EMULATOR_HOST") {
        let base = match host.contains("://") {
            true => host,
            false => format!("http://{host}"),
        };
        let base = base.trim_end_matches('/');
        // Not `with_skip_signature`, by which writing asks for credentials all the same.
        return Ok(builder.with_base_url(base).with_bearer_token("emulator"));
    }
    let keys = [
        GoogleConfigKey::ServiceAccount,
        GoogleConfigKey::ServiceAccountKey,
        GoogleConfigKey::ApplicationCredentials,
    ];
    let others = ["GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE"];
    let file = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let file = file.join(".config/gcloud/application_default_credentials.json");
    if keys
        .iter()
        .any(|key| builder.get_config_value(key).is_some())
        || others.iter().any(|name| env::var_os(name).is_some())
        || file.exists()
        || has_metadata_server()
    {
        return Ok(builder);
    }
    Err(nobody(Scheme::Gs).to_owned())
}

/// What is said where nothing says who this program is.
pub(super) const fn nobody(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "there are no credentials: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile with both in ~/.aws/credentials (AWS_PROFILE names another one; of other kinds of profiles `aws configure export-credentials --format env` makes variables), or the role of a machine of Amazon; AWS_SKIP_SIGNATURE=true asks as nobody"
        }
        Scheme::Gs => {
            "there are no credentials: expected GOOGLE_APPLICATION_CREDENTIALS with the file of a service account, or the file that `gcloud auth application-default login` writes, or a machine of Google; GOOGLE_SKIP_SIGNATURE=true asks as nobody"
        }
    }
}

fn has_metadata_server() -> bool {
    TcpStream::connect_timeout(&SocketAddr::from(METADATA), METADATA_LIMIT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_among_others() {
        let text = "[default]\naws_access_key_id = A\n# x\n[two]\r\naws_access_key_id=B\naws_secret_access_key = a=b==\n[three]\n";
        assert_eq!(profile(text, "default")["aws_access_key_id"], "A");
        assert_eq!(profile(text, "two")["aws_access_key_id"], "B");
        assert_eq!(profile(text, "two")["aws_secret_access_key"], "a=b==");
        assert!(profile(text, "three").is_empty() && profile(text, "four").is_empty());
    }
}
