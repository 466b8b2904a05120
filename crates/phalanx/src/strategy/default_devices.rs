//! The devices of this machine that strategies use when none are named.

use phalanx_pjrt::{Platform, PluginSearch, idle_gpus};

use crate::Result;
use crate::engine::{Engine, EngineOptions};

/// Kinds of devices that are used before the CPU, where they are there.
const ACCELERATORS: [Platform; 4] = [
    Platform::Cuda,
    Platform::Rocm,
    Platform::Tpu,
    Platform::Oneapi,
];

/// The accelerators of this machine for which a plugin is found, of the first kind that starts; else the CPU.
pub(super) fn engine() -> Result<Engine> {
    let (search, options) = (PluginSearch::from_process(), EngineOptions::default());
    let is_there = |platform: &Platform| match search.find(*platform, None) {
        Ok(_) => true,
        // What the user names is not passed over in silence.
        Err(missing) => missing.named,
    };
    let start = |platform| {
        Engine::new(&EngineOptions {
            platform,
            ..options.clone()
        })
    };
    if let Some(platform) = search.unserved_gpus() {
        (options.notice)(&idle_gpus(platform));
    }
    let kinds = ACCELERATORS.into_iter().filter(is_there);
    first_that_starts(kinds, start, |line| (options.notice)(line))
}

fn first_that_starts<T>(
    mut kinds: impl Iterator<Item = Platform>,
    start: impl Fn(Platform) -> Result<T>,
    notice: impl Fn(&str),
) -> Result<T> {
    let started = kinds.find_map(|platform| {
        let started = start(platform).inspect_err(|error| {
            notice(&format!(
                "warning: the {platform} devices do not start and are not used: {error}"
            ));
        });
        started.ok()
    });
    started.map_or_else(|| start(Platform::Cpu), Ok)
}

/// What is to be said of devices that a strategy leaves idle, which has this number of places.
pub(super) fn idle_warning(kind: &str, places: Option<usize>, names: &[String]) -> Option<String> {
    let places = places?;
    let idle = names.get(places..).filter(|idle| !idle.is_empty())?;
    Some(format!(
        "warning: {kind}: it is for {places} devices, and there are {}, of which {} stay idle; make it larger, or name {places} with `devices`",
        names.len(),
        idle.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::Error;

    #[test]
    fn the_cpu_is_used_where_nothing_else_starts_and_this_is_told() {
        let told = RefCell::new(Vec::new());
        let notice = |line: &str| told.borrow_mut().push(line.to_owned());
        let start = |platform| match platform {
            Platform::Cuda => Err(Error::Device("no driver".into())),
            other => Ok(other),
        };
        let first =
            |kinds: &[Platform]| first_that_starts(kinds.iter().copied(), start, notice).unwrap();
        assert_eq!(first(&[]), Platform::Cpu);
        assert_eq!(first(&[Platform::Tpu, Platform::Cuda]), Platform::Tpu);
        assert!(told.borrow().is_empty());
        assert_eq!(first(&[Platform::Cuda]), Platform::Cpu);
        assert_eq!(first(&[Platform::Cuda, Platform::Rocm]), Platform::Rocm);
        let line = "warning: the cuda devices do not start and are not used: no driver";
        assert_eq!(told.borrow()[..], [line, line]);
    }

    #[test]
    fn devices_without_a_place_are_told() {
        let warning = |places, there: usize| {
            let names: Vec<String> = (0..there).map(|index| format!("cpu:{index}")).collect();
            idle_warning("mesh", places, &names)
        };
        assert_eq!(
            warning(Some(2), 4).unwrap(),
            "warning: mesh: it is for 2 devices, and there are 4, of which cpu:2, cpu:3 stay idle; make it larger, or name 2 with `devices`"
        );
        assert_eq!(warning(Some(2), 2), None);
        assert_eq!(warning(Some(2), 1), None);
        assert_eq!(warning(None, 3), None);
    }
}
