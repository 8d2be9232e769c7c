//! The `kvmem-lab` command.

fn main() -> std::process::ExitCode {
    kvmem_lab::main()
}
