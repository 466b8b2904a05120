//! A loop of one's own around a `fit` in which a worker is lost.

use phalanx::prelude::*;
use phalanx::strategy::MultiWorkerMirroredStrategy;

use super::cases;

/// Set where a worker counts examples by a function and data that it has made before `fit`.
pub(super) const OWN_LOOP: &str = "PHALANX_TEST_OWN_LOOP";

/// Counts examples and replicas, and gives what counts them again.
pub(super) fn begin(
    strategy: &MultiWorkerMirroredStrategy,
) -> phalanx::Result<Option<impl FnMut() -> phalanx::Result<()>>> {
    if std::env::var_os(OWN_LOOP).is_none() {
        return Ok(None);
    }
    let mut state = strategy.state(1)?;
    let mut function = strategy.function(|cx, batch: Inputs| {
        let counts = cx.examples() + batch.x[0].sum_all() * 0.0;
        [cx.all_reduce(ReduceOp::Sum, &counts)]
    });
    // Nothing that it takes has another shape when a worker is lost.
    let mut known = strategy.function(|cx, ()| {
        let replicas = cx.replicas_in_sync() as f64;
        [cx.graph().scalar(DType::F32, replicas)]
    });
    let data = strategy.distribute_dataset(&cases::rows(17).batch(8));
    let strategy = strategy.clone();
    let mut count = move || {
        let mut counted = 0.0;
        for batch in data.epoch(0) {
            let [examples] = function.call(&mut state, &batch?)?;
            counted += examples.value()?.f32s()[0];
        }
        assert_eq!(counted, 17.0);
        let [replicas] = known.call(&mut state, &())?;
        let now = strategy.placement().replicas();
        assert_eq!(replicas.value()?.f32s(), [now as f32]);
        Ok(())
    };
    count()?;
    Ok(Some(count))
}
