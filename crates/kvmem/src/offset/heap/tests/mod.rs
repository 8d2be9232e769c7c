mod chunked_table;
mod worst;
