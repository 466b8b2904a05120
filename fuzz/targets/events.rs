//! Event files, and single events without a checksum around them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_summary::Run;

fuzz_target!(|input: &[u8]| {
    let mut run = Run::default();
    let is_whole = run.add(input).expect("memory can be read");
    assert!(!is_whole || input.is_empty() || input.len() >= 16);
    let mut run = Run::default();
    run.add_event(input);
    run.add_event(input);
    let numbers: usize = run.scalars.values().map(Vec::len).sum();
    let rows: usize = run.histograms.values().flatten().map(|(_, histogram)| histogram.0.len()).sum();
    assert!(numbers <= 2 * input.len() && 24 * rows <= 4 * input.len());
    assert!(run.nodes.len() <= input.len());
});
