//! Utilization of contenders in the loops, without timing and without a report: for work on a placement policy.
//!
//! `cargo run --release -p kvmem-bench --example util -- WORKLOAD… [CONTENDER…] [--seeds N] [--ops N]`

use std::error::Error;
use std::time::Instant;

use kvmem_bench::contender::{Contender, ContenderId, Visitor};
use kvmem_bench::loops::{bimodal, paired, random, scatter, shift};
use kvmem_bench::stats::mean;
use kvmem_testkit::workload::{Bimodal, Lifetimes};

const USAGE: &str = "usage: util random|paired|rl|shift|mix|scatter… [kvmem|binned|binned-unrounded|offset-allocator|best-fit|null…] [--seeds N] [--ops N]";

#[derive(Clone)]
struct Task {
    workload: String,
    seeds: u64,
    ops: u64,
}

impl Visitor for Task {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<C: Contender>(self) -> Self::Output {
        let start = Instant::now();
        let Self { workload, seeds, ops } = self;
        let seeds = 1..=seeds;
        let id = C::ID;
        match workload.as_str() {
            "random" => {
                for seed in seeds {
                    let out = random::run::<C>(seed, &random::sizes(), random::POOL, ops)?;
                    println!("random {id:16} seed {seed}: {:?} {:.0} ns", out.util, out.ns_per_op);
                }
            }
            "paired" => {
                for seed in seeds {
                    let (warm_up, rounds) = paired::ROUNDS;
                    let out = paired::run::<C>(seed, paired::POOL, warm_up, rounds)?;
                    let (n, ns) = (out.samples, out.ns_per_op);
                    println!("paired {id:16} seed {seed}: {:?} {n} samples {ns:.0} ns", out.util);
                }
            }
            "mix" => {
                for seed in seeds {
                    let mut all = Vec::new();
                    for (name, sizes) in random::mixes() {
                        let out = random::run::<C>(seed, &sizes, random::POOL, ops / 4)?;
                        print!("{name} {:.4}  ", out.util.avg);
                        all.push(out.util.avg);
                    }
                    println!("\nmix {id:16} seed {seed}: mean {:.4}", mean(&all).unwrap_or(0.0));
                }
            }
            "shift" => {
                for seed in seeds {
                    let mut all = Vec::new();
                    for ratio in shift::RATIOS {
                        let out = shift::run::<C>(seed, shift::Plan::standard(ratio))?;
                        print!(
                            "{ratio}: {:.4} min {:.4} {:.4} {:.4}  ",
                            out.during, out.min, out.early, out.late
                        );
                        all.push(out.early);
                    }
                    println!("\nshift {id:16} seed {seed}: mean {:.4}", mean(&all).unwrap_or(0.0));
                }
            }
            "rl" => {
                for seed in seeds {
                    for lifetimes in [Lifetimes::Object, Lifetimes::Batch] {
                        for producers in [1, 2, 8] {
                            let run = Bimodal::new(seed, producers, lifetimes, ops as usize / 16 / producers);
                            let best = bimodal::highest::<C>(&run)?;
                            let rate = bimodal::fail_rate::<C>(&run, bimodal::pool_for(&run, 95))?;
                            println!(
                                "rl {id:16} seed {seed} {lifetimes:?} {producers} producers: no failure {:.2} \
                                 few {:.2}; at 0.95 {:.2e} fail",
                                best.no_failure, best.few_failures, rate
                            );
                        }
                    }
                }
            }
            "scatter" if C::SCATTERS => {
                for seed in seeds {
                    for ranges in [2, 4] {
                        let out = scatter::run::<C>(seed, &random::sizes(), random::POOL, ops / 4, ranges)?;
                        println!("scatter {id:16} ≤ {ranges} seed {seed}: {:?}", out.util);
                    }
                }
            }
            "scatter" => println!("scatter {id}: one range only"),
            _ => return Err(USAGE.into()),
        }
        println!("    {workload} {id}: {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut workloads, mut contenders) = (Vec::new(), Vec::new());
    let (mut seeds, mut ops) = (1, 1_000_000);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok()).ok_or(USAGE);
        match arg.as_str() {
            "--seeds" => seeds = number()?,
            "--ops" => ops = number()?,
            _ => match arg.parse::<ContenderId>() {
                Ok(id) => contenders.push(id),
                Err(_) => workloads.push(arg),
            },
        }
    }
    if workloads.is_empty() {
        return Err(USAGE.into());
    }
    if contenders.is_empty() {
        contenders = vec![ContenderId::Binned, ContenderId::BestFit];
    }
    for workload in workloads {
        for contender in &contenders {
            contender.visit(Task { workload: workload.clone(), seeds, ops })?;
        }
    }
    Ok(())
}
