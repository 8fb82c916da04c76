namespace trainwright {}
