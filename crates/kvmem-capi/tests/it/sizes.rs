//! Parses sizes through the header, with the table that tests the library, Python and the command
//! too.

use std::fmt::Write;
use std::process::Command;

use crate::support::{compile, scratch, succeed};

const TABLE: &str = include_str!("../../../kvmem/tests/data/sizes.tsv");

/// Writes a text as a C literal, byte by byte.
fn literal(text: &str) -> String {
    text.bytes().fold(String::new(), |mut literal, byte| {
        let _ = write!(literal, "\\{byte:03o}");
        literal
    })
}

#[test]
fn sizes_are_parsed_as_in_the_table() {
    let mut program = String::from(
        "#include <kvmem.h>\n#include \"check.h\"\n\nint main(void) {\n    uint64_t bytes;\n",
    );
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let (text, expected) = line.split_once('\t').expect("a text and what it is");
        let text = literal(text);
        let _ = match expected.parse::<u64>() {
            Ok(bytes) => write!(
                program,
                "    OK(kvmem_parse_size(\"{text}\", &bytes));\n    CHECK(bytes == {bytes}u);\n"
            ),
            Err(_) => write!(
                program,
                "    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_parse_size(\"{text}\", &bytes));\n    \
                 SAYS(\"such as 64GiB\");\n"
            ),
        };
    }
    program += "    return 0;\n}\n";
    let source = scratch("programs").join("sizes.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    succeed(&mut Command::new(compile(&source, "sizes", &[])));
}
