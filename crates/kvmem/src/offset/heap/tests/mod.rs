mod worst;
