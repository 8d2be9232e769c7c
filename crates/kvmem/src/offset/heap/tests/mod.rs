mod batch;
mod chunked_table;
mod worst;
