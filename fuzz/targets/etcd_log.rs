//! Entries of a job's log in etcd, with and without a secret.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_cluster::coordination::rewritten_log_entry;

fuzz_target!(|input: &[u8]| {
    for secret in [None, Some(&b"secret"[..])] {
        let Some(written) = rewritten_log_entry(input, "log/1", secret) else {
            continue;
        };
        let again = rewritten_log_entry(&written, "log/1", secret);
        assert_eq!(again.as_ref(), Some(&written), "it reads otherwise than it was written");
        assert_eq!(
            rewritten_log_entry(&written, "log/2", Some(b"secret")),
            None,
            "an entry of another key, or without a secret, was taken"
        );
    }
});
