use phalanx::engine::Engine;
use phalanx_graph::*;
use phalanx_pjrt::Buffer;
use std::time::Instant;

fn main() {
    let batch: usize = std::env::args().nth(1).map_or(64, |a| a.parse().unwrap());
    let variant = std::env::args().nth(2).unwrap_or_default();
    let e = Engine::cpu().unwrap();
    let g = Graph::new();
    let sh = [vec![784usize, 128], vec![128], vec![128, 10], vec![10]];
    let names = ["w1", "b1", "w2", "b2"];
    let p: Vec<Tensor> = sh.iter().zip(names).map(|(d, n)| g.parameter(n, Shape::f32(d.clone()))).collect();
    let v: Vec<Tensor> = sh.iter().zip(names).map(|(d, n)| g.parameter(n, Shape::f32(d.clone()))).collect();
    let x = g.parameter("x", Shape::f32([batch, 784]));
    let y = g.parameter("y", Shape::new(DType::I32, [batch]));
    let h = (x.matmul(&p[0]) + &p[1]);
    let h = h.maximum(&h.like(0.0));
    let logits = h.matmul(&p[2]) + &p[3];
    let lp = logits.log_softmax(1);
    let oh = y.one_hot(10, DType::F32);
    let loss = -(lp * oh).sum_all() / batch as f64;
    let wrt: Vec<&Tensor> = p.iter().collect();
    let gr = gradients(&loss, &wrt);
    let mut outs = vec![];
    let mut newp = vec![];
    let mut newv = vec![];
    for i in 0..4 {
        let mut gi = gr[i].clone().unwrap();
        if variant.contains('t') && i == 0 {
            gi = gi;
        }
        let nv = &v[i] * 0.9 - gi * 0.01;
        let np = &p[i] + &nv;
        newp.push(np);
        newv.push(nv);
    }
    for t in &newp { outs.push(("p", t)); }
    for t in &newv { outs.push(("v", t)); }
    outs.push(("loss", &loss));
    let mut prog = g.finish(&outs).unwrap();
    if !variant.contains('n') { prog.donated = (0..8).map(|i| (i, i)).collect(); }
    let t = Instant::now();
    let c = e.compile("mlp", &prog).unwrap();
    eprintln!("compile {:?} cached {}", t.elapsed(), c.from_cache);
    let mk = |d: &[usize], s: f32| {
        let n: usize = d.iter().product();
        HostTensor::new(d.to_vec(), &(0..n).map(|i| ((i * 7919 % 1000) as f32 / 1000.0 - 0.5) * s).collect::<Vec<_>>())
    };
    let mut state: Vec<Buffer> = sh.iter().map(|d| e.put(0, &mk(d, 0.1)).unwrap()).collect();
    state.extend(sh.iter().map(|d| e.put(0, &mk(d, 0.0)).unwrap()));
    let xb = e.put(0, &mk(&[batch, 784], 1.0)).unwrap();
    let yb = e.put(0, &HostTensor::new([batch], &(0..batch).map(|i| (i % 10) as i32).collect::<Vec<_>>())).unwrap();
    let mut times = vec![];
    let mut l = 0.0;
    for _ in 0..3000 {
        let t = Instant::now();
        let mut args: Vec<&Buffer> = state.iter().collect();
        args.push(&xb);
        args.push(&yb);
        let mut out = c.run(&[&args]).unwrap().0.remove(0);
        let lb = out.pop().unwrap();
        drop(args);
        state = out;
        l = e.get(&lb, &Shape::scalar(DType::F32)).unwrap().f32s()[0];
        times.push(t.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("batch {batch} loss {l} median {:.4} min {:.4} p90 {:.4} ms", times[1500], times[0], times[2700]);
    // pipelined
    let t = Instant::now();
    for _ in 0..60000 {
        let mut args: Vec<&Buffer> = state.iter().collect();
        args.push(&xb);
        args.push(&yb);
        let mut out = c.run(&[&args]).unwrap().0.remove(0);
        out.pop().unwrap();
        drop(args);
        state = out;
    }
    e.get(&state[0], &Shape::f32([784, 128])).unwrap();
    println!("pipelined {:.4} ms", t.elapsed().as_secs_f64() * 1e3 / 60000.0);
}
