//! Runs a loop with a contender, and prints the figure: see `kvmem_lab::count`.

fn main() -> std::process::ExitCode {
    kvmem_lab::count::main()
}
