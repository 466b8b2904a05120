//! Which values of a program are the same on all replicas, found out from the program alone.
//!
//! A value is when what it is made of is; what a replica gets of a batch and its number are not, and an all-reduce or
//! all-gather makes one of them again. So a step that would let replicas drift apart, or wait for one another for ever,
//! is refused before it runs.

use std::panic::Location;

use phalanx_graph::Program;
use phalanx_graph::op::{Node, Op, ScanDims, Subgraph, Value};

/// Which values of a program are the same on all replicas.
pub(super) struct Agreement {
    same: Vec<Vec<bool>>,
    /// A collective in a loop that replicas run differently often.
    pub(super) diverging: Option<Diverging>,
}

/// An op for which some replicas would wait in vain.
pub(super) struct Diverging {
    pub(super) op: &'static str,
    pub(super) location: &'static Location<'static>,
}

impl Agreement {
    /// Analyses a program whose parameters are the same on all replicas where `parameters` says so.
    pub(super) fn of(program: &Program, parameters: &[bool]) -> Self {
        let mut diverging = None;
        let same = analysed(&program.nodes, parameters, &mut diverging);
        Self { same, diverging }
    }

    pub(super) fn is_same(&self, value: Value) -> bool {
        self.same[value.node][value.output]
    }
}

fn analysed(
    nodes: &[Node],
    parameters: &[bool],
    diverging: &mut Option<Diverging>,
) -> Vec<Vec<bool>> {
    let mut same: Vec<Vec<bool>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let inputs: Vec<bool> = node.inputs.iter().map(|v| same[v.node][v.output]).collect();
        let whole = |same| vec![same; node.shapes.len()];
        let results = match &node.op {
            Op::Parameter(index) => vec![parameters[*index]],
            Op::ReplicaId
            | Op::ReduceScatter { .. }
            | Op::AllToAll { .. }
            | Op::CollectivePermute(_) => whole(false),
            Op::AllReduce { .. } | Op::AllGather { .. } => whole(true),
            Op::While { condition, body } => repeated(condition, body, inputs, diverging),
            Op::Scan(scan) => scanned(scan, inputs, diverging),
            _ => whole(inputs.iter().all(|&same| same)),
        };
        same.push(results);
    }
    same
}

/// The carried values of a loop are the same if they are before it and after each turn, and replicas make as many turns.
fn repeated(
    condition: &Subgraph,
    body: &Subgraph,
    initial: Vec<bool>,
    diverging: &mut Option<Diverging>,
) -> Vec<bool> {
    let carried = settled(initial, |carried| outputs(body, carried, &mut None));
    let in_step = outputs(condition, &carried, diverging)
        .into_iter()
        .all(|same| same);
    if in_step {
        outputs(body, &carried, diverging);
        return carried;
    }
    let found = first_collective(&condition.nodes).or_else(|| first_collective(&body.nodes));
    if diverging.is_none() {
        *diverging = found;
    }
    vec![false; carried.len()]
}

fn scanned(scan: &ScanDims, inputs: Vec<bool>, diverging: &mut Option<Diverging>) -> Vec<bool> {
    let carry = scan.carry;
    let with = |carried: &[bool]| [carried, &inputs[carry..]].concat();
    let carried = settled(inputs[..carry].to_vec(), |carried| {
        let mut next = outputs(&scan.body, &with(carried), &mut None);
        next.truncate(carry);
        next
    });
    let last = outputs(&scan.body, &with(&carried), diverging);
    [&carried, &last[carry..]].concat()
}

/// What stays the same however often the loop turns: each turn may only take away.
fn settled(mut carried: Vec<bool>, turn: impl Fn(&[bool]) -> Vec<bool>) -> Vec<bool> {
    loop {
        let next: Vec<bool> = (carried.iter().zip(turn(&carried)))
            .map(|(before, after)| *before && after)
            .collect();
        if next == carried {
            return carried;
        }
        carried = next;
    }
}

fn outputs(body: &Subgraph, arguments: &[bool], diverging: &mut Option<Diverging>) -> Vec<bool> {
    let same = analysed(&body.nodes, arguments, diverging);
    let outputs = body.outputs.iter();
    outputs.map(|v| same[v.node][v.output]).collect()
}

fn first_collective(nodes: &[Node]) -> Option<Diverging> {
    nodes.iter().find_map(|node| match &node.op {
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_) => Some(Diverging {
            op: node.op.name(),
            location: node.location,
        }),
        Op::While { condition, body } => {
            first_collective(&condition.nodes).or_else(|| first_collective(&body.nodes))
        }
        Op::Scan(scan) => first_collective(&scan.body.nodes),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::op::ReduceOp;
    use phalanx_graph::{DType, Graph, Shape, Tensor};

    /// Whether each result of a program of `same` and `own` is the same on all replicas.
    fn verdict(build: impl FnOnce(&Graph, &Tensor, &Tensor) -> Vec<Tensor>) -> Vec<bool> {
        agreement(build).0
    }

    fn agreement(
        build: impl FnOnce(&Graph, &Tensor, &Tensor) -> Vec<Tensor>,
    ) -> (Vec<bool>, Option<Diverging>) {
        let graph = Graph::with_replicas(2);
        let same = graph.parameter("same", Shape::f32([4]));
        let own = graph.parameter("own", Shape::f32([4]));
        let results = build(&graph, &same, &own);
        let named: Vec<(&str, &Tensor)> = results.iter().map(|t| ("y", t)).collect();
        let program = graph.finish(&named).unwrap();
        let agreement = Agreement::of(&program, &[true, false]);
        let values = program.outputs.iter();
        let same = values.map(|(_, value)| agreement.is_same(*value)).collect();
        (same, agreement.diverging)
    }

    #[test]
    fn what_is_made_of_a_replicas_own_is_its_own_until_it_is_reduced() {
        let found = verdict(|graph, same, own| {
            vec![
                same * 2.0,
                own * 2.0,
                same + own,
                own.all_reduce(ReduceOp::Sum),
                own.all_gather(0),
                own.reduce_scatter(0),
                graph.replica_id(),
                own.like(3.0),
                same.collective_permute(&[(0, 1)]),
            ]
        });
        let expected = [true, false, false, true, true, false, false, true, false];
        assert_eq!(found, expected);
    }

    #[test]
    fn loops_take_away_what_a_later_turn_does() {
        // The second value becomes the first after a turn, the third the second after two.
        let found = verdict(|graph, same, own| {
            let count = graph.scalar(DType::I32, 0.0);
            graph.while_loop(
                &[&count, own, same, same, same],
                |v| v[0].less(&v[0].like(3.0)),
                |v| {
                    vec![
                        &v[0] + 1.0,
                        v[1].clone(),
                        v[1].clone(),
                        v[2].clone(),
                        v[4].clone(),
                    ]
                },
            )
        });
        assert_eq!(found, [true, false, false, false, true]);
        let found = verdict(|graph, same, own| {
            let sum = graph.scalar(DType::F32, 0.0);
            let (carry, rows) = graph.scan(4, &[&sum, &sum], &[same, own], &[], |c, x, _| {
                let next = vec![&c[0] + &x[0], &c[1] + &x[1]];
                (next.clone(), next)
            });
            [carry, rows].concat()
        });
        assert_eq!(found, [true, false, true, false]);
    }

    #[test]
    fn collectives_in_loops_are_fine_when_all_turn_as_often() {
        let reduce_while = |limit: &Tensor| {
            limit.graph().while_loop(
                &[limit],
                |v| v[0].sum_all().less(&v[0].sum_all().like(9.0)),
                |v| vec![v[0].all_reduce(ReduceOp::Sum)],
            )
        };
        let (same, found) = agreement(|_, same, _| reduce_while(same));
        assert!(found.is_none() && same == [true]);
        let (same, found) = agreement(|_, _, own| reduce_while(own));
        assert_eq!(same, [false]);
        let found = found.expect("a mistake");
        assert_eq!(found.op, "all_reduce");
        assert!(found.location.file().ends_with("agreement.rs"));
    }

    #[test]
    fn a_loop_in_a_loop_is_found() {
        let (_, found) = agreement(|graph, same, own| {
            graph.while_loop(
                &[own],
                |v| v[0].sum_all().less(&v[0].sum_all().like(9.0)),
                |v| {
                    let graph = v[0].graph();
                    let (_, rows) = graph.scan(4, &[], &[&v[0]], &[], |_, x, _| {
                        (vec![], vec![x[0].all_reduce(ReduceOp::Max)])
                    });
                    rows
                },
            );
            vec![same.clone()]
        });
        assert_eq!(found.expect("a mistake").op, "all_reduce");
    }
}
