//! The buckets of tests.

/// The URLs, ending with `name`, of a folder that no other test writes to, in each bucket of PHALANX_TEST_STORES. Without that variable there are
/// none, and it says so.
#[must_use]
pub fn bucket_urls(name: &str) -> Vec<String> {
    let Ok(stores) = std::env::var("PHALANX_TEST_STORES") else {
        crate::skip("PHALANX_TEST_STORES names no bucket; `cargo xtask check cloud` does");
        return Vec::new();
    };
    let process = std::process::id();
    let url = |store: &str| format!("{store}/{process}/{name}");
    stores.split_whitespace().map(url).collect()
}
